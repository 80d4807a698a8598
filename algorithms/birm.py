"""Bayesian invariant risk minimization."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Batch, Needs, Outputs, register
from oodbench.hparams import altered, hparam, log_uniform

from .irm import IRM
from .penalized import Penalized

SAMPLES = 10
"""Draws of every environment's classifier in a step, as in the authors' code."""


@register("BIRM", paper="Lin et al., Bayesian Invariant Risk Minimization, CVPR 2022")
class BIRM(Penalized):
    """IRM whose penalty is a mean over draws of each environment's classifier.

    mean_e R_e + weight mean_s mean_e [d/dw R_e(w * logits) at w = w_es]^2, where w_es is drawn from
    N(1, `deviation`^2), the environment's posterior: with few examples the gradient at w = 1 alone can be
    small by over-fitting. The risks are those at w = 1. The authors' deviation is c / n for n training
    examples: 1,200 / 20,000 on Colored MNIST, 1,500 / 10,000 on CifarMnist; there their code multiplies the
    gradients of two halves of a batch, and on ColoredObject it is V-REx. The weight is 0 before
    `anneal_steps`; with `divide_by_weight` their code divides by 1 + weight instead of the weight.
    A deviation of 0 is IRM.
    """

    needs = Needs(outputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """Weights: IRM's, with the authors' on small images; deviations: around those of their code."""

        initial_weight: float = hparam(0.0, low=0.0)
        penalty_weight: float = altered(IRM.Hparams, "penalty_weight", {})
        deviation: float = hparam(0.06, log_uniform(0.02, 0.5), low=0.0)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Standard normal numbers (S, E), one for each draw and environment."""
        return {"scales": torch.randn(SAMPLES, len(batch.x), generator=generator)}

    def penalty(self, out: Outputs) -> Tensor:
        """The mean over draws and environments of the squared gradients in the drawn scales."""
        scales = 1 + self.hparams.deviation * out.batch.noise["scales"].to(out.logits.dtype)
        scales = scales.view(*scales.shape, *[1] * (out.logits.ndim - 1))
        targets = out.targets.expand(len(scales), *out.targets.shape)
        slopes = out.task.logit_gradients(scales * out.logits, targets) * out.logits
        return slopes.flatten(3).sum(3).mean(2).square().mean()
