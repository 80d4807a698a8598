"""Fishr: the same variance of the gradients within every environment."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oodbench.algorithms import Needs, Outputs, Problem, register
from oodbench.errors import UserError
from oodbench.hparams import hparam, log_uniform, uniform
from oodbench.networks.base import Network

from .penalized import Penalized


@register("Fishr", paper="arXiv:2109.02934")
class Fishr(Penalized):
    """Mean risk plus the spread between environments of the variances of the examples' gradients.

    With v_e the variance over the examples of environment e (population) of the gradient of their losses
    with respect to the weights and the bias of the linear classifier, the penalty is mean_e mean_k
    (v_e - mean v)_k^2 (eq. 4, as means). v_e is averaged over steps, starting from zero: a_e <- ema
    a_e + (1 - ema) v_e, and a_e / (1 - ema) replaces v_e. So the gradient of this step's v_e counts in
    full, while the penalty grows to 1 / (1 - ema)^2 times its first value. `ema` = 0 means no averaging.

    The constants are those of arXiv:2007.01434's code, whose loss is that of the pooled batch. The paper's
    Colored MNIST sums over the K components and E environments, without averaging: its weights, including
    the initial 1, times E K are ours (the defaults for small images).
    """

    needs = Needs(environments=2, feature_vector=True)
    variances: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """Defaults and ranges: arXiv:2007.01434's code; for small images those of IRM, times 500."""

        penalty_weight: float = hparam(
            1000.0,
            log_uniform(1e1, 1e4),
            low=0.0,
            by_family={"small_images": (5e6, log_uniform(5e4, 5e8))},
        )
        initial_weight: float = hparam(0.0, low=0.0, by_family={"small_images": (500.0, None)})
        anneal_steps: int | float = hparam(
            0.3,
            uniform(0.0, 5000 / 5001),
            low=0,
            by_family={"linear": (0, None), "small_images": (0.2, uniform(0.1, 0.5))},
        )
        ema: float = hparam(
            0.95,
            uniform(0.9, 0.99),
            low=0.0,
            high=0.999,
            by_family={"small_images": (0.0, None)},
        )

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        head = network.classifier
        if not isinstance(head, nn.Linear):
            raise UserError("Fishr needs a network whose classifier is a single linear layer")
        components = head.weight.numel() + (0 if head.bias is None else head.out_features)
        self.register_buffer("variances", torch.zeros(len(problem.environments), components))

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """The running means a_e after this step, unchanged for environments left out of the step."""
        ema = self.hparams.ema
        mean = ema * out.of_step(self.variances) + (1 - ema) * self.head_variances(out)
        return {"variances": out.over_environments(mean, self.variances)}

    def head_variances(self, out: Outputs) -> Tensor:
        """The variances v_e, (E, K), of gradients slope x feature, as E[slope^2 feature^2] - mean^2."""
        slopes = out.task.logit_gradients(out.logits, out.targets)
        count = slopes.shape[1]
        mean = slopes.mT @ out.features / count
        square = slopes.square().mT @ out.features.square() / count
        variances = (square - mean.square()).flatten(1)
        if self.network.classifier.bias is None:
            return variances
        return torch.cat([variances, slopes.var(1, correction=0)], 1)

    def penalty(self, out: Outputs) -> Tensor:
        """The mean over components of the population variance over environments."""
        variances = out.of_step(out.buffers["variances"]) / (1 - self.hparams.ema)
        return variances.var(0, correction=0).mean()
