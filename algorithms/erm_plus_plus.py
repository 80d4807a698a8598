"""ERM with a longer list of good habits."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Batch, Problem, first_step, register
from oodbench.hparams import hparam, log_uniform
from oodbench.networks.base import Network
from oodbench.optimizers import Rates
from oodbench.steps import CustomStep, trains_head_only, usual_update


@register("ERMPlusPlus", paper="arXiv:2304.01973")
class ERMPlusPlus(CustomStep):
    """ERM that trains its head first and predicts with the mean of the weights of later steps.

    In the first tenth of the steps the head alone is trained, at its own rate and with its own optimizer;
    from `average_start` on predictions are those of the mean of the weights after each update (and of
    those before the first). Where the network has statistics of batch normalisation, a forward pass of
    the mean network moves them towards its own. So is arXiv:2007.01434's code, but that its head has one
    step more, with the featurizer in training mode. There the rate also falls tenfold whenever the loss
    of validation examples stands still, and a second training, on all examples, repeats the rates. Here
    no method sees the examples of its selection: the rates are those of `lr_schedule`, and a sweep with
    `holdout: 0` trains on all examples.
    """

    changes = "estimator"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(CustomStep.Hparams):
        """arXiv:2007.01434's code, whose runs have 5,001 steps."""

        head_only: int | float = hparam(0.1, low=0)
        head_lr: float = hparam(5e-5, log_uniform(1e-5, 10**-3.5), low=0.0)
        """The learning rate of the steps that train the head alone."""
        average_start: int | float = hparam(0.12, low=0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.mean = copy.deepcopy(network).requires_grad_(False)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Without steps of the head alone its updates are ERM's; predictions are those of the mean."""
        return {"head_only": 0}

    def schedule(self, step: int, rates: Rates) -> Rates:
        """The head's own rate, and a new optimizer after it."""
        h = self.hparams
        if trains_head_only(self, step):
            return rates._replace(lr=rates.lr / h.lr * h.head_lr if h.lr else 0.0)
        return rates._replace(restart=trains_head_only(self, step - 1))

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The usual update, whose weights are averaged in."""
        metrics = usual_update(self, batch, step)
        start = max(1, int(first_step(self.hparams.average_start, self.problem.steps)))
        share = 1 / max(1, step + 3 - start)
        with torch.no_grad():
            pairs = zip(
                self.mean.state_dict().values(), self.network.state_dict().values(), strict=True
            )
            for mean, now in pairs:
                mean.lerp_(now, share) if mean.is_floating_point() else mean.copy_(now)
            if any(True for _ in self.mean.buffers()):
                self.mean.train()(batch.x.flatten(0, 1))
        return metrics

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) under the mean of the weights."""
        logits: Tensor = self.mean(x)
        return logits
