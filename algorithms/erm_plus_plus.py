"""ERM with further tuned practices."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Drawing, Problem, first_step, register
from oodbench.hparams import hparam, log_uniform
from oodbench.networks.base import Network
from oodbench.optimizers import Rates

from .plateau import FALLS, Plateau


@register("ERMPlusPlus", paper="arXiv:2304.01973")
class ERMPlusPlus(Algorithm):
    """ERM that trains its head first and predicts with the mean of the weights of later steps.

    In the first tenth of the steps the head alone is trained, with a separate rate and optimizer, unless
    the network's head is frozen; from `average_start` on, predictions use the mean of the weights after
    each update (and of those just before). If the network has batch normalisation, each update also runs
    the mean network in training mode, which adapts its running statistics. arXiv:2007.01434's code does the
    same, except that its head-only phase has one more step, with the featurizer in training mode.

    With `first_stage` the network is trained twice, as in the paper. The first training holds out a share
    of the training examples. Its learning rate falls tenfold whenever the loss on these fails to drop at
    least 0.01 % below its minimum at two evaluations in a row, and the third fall ends the training. The
    second training starts from the initial weights, on all training examples, and its rate falls at the
    same steps; `lr_schedule` and `warm_up` then have no effect. In arXiv:2007.01434's code selection uses
    the held-out examples, so that none are left to select by in the second training; both trainings have as
    many steps as a run; and the second ends one evaluation before the first.
    """

    changes = "estimator"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """arXiv:2007.01434's code, whose trainings have 5,001 steps."""

        head_only: int | float = hparam(0.1, low=0)
        head_lr: float = hparam(5e-5, log_uniform(1e-5, 10**-3.5), low=0.0)
        """The learning rate of the steps that train the head alone."""
        average_start: int | float = hparam(0.12, low=0)
        """The step at which averaging starts, below 1 a share of the (second) training's steps."""
        first_stage: int | float = hparam(0.0, low=0, neutral=0.0)
        """The steps of the first training, below 1 a share of the run's; 0: train only once."""
        held_out: float = hparam(0.2, low=0.01, high=0.9, neutral=0.2)
        """The share of every environment's training examples that the first training does not see."""

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.mean = copy.deepcopy(network).requires_grad_(False)
        self.second = int(first_step(hparams.first_stage, problem.steps))
        self.plateau = Plateau(problem.steps)
        if self.second:
            self.initial = copy.deepcopy(self.mean)
        steps = problem.steps - self.second
        has_head = any(name.startswith("classifier.") for name in self._trained)
        self.head_steps = int(first_step(hparams.head_only, steps)) if has_head else 0
        self.start = max(1, int(first_step(hparams.average_start, steps)))

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """No head-only steps: updates are ERM's, but predictions still use the mean."""
        return {"head_only": 0}

    def _step(self, step: int) -> int:
        """Number of updates before this one in the current training."""
        return step if step < self.second else step - self.second

    def trains_head_only(self, step: int) -> bool:
        """Whether `step` is in a training's head-only warm-up; never if the head is frozen."""
        return 0 <= self._step(step) < self.head_steps

    def drawing_at(self, step: int) -> Drawing:
        """Hold examples out of the first training."""
        return Drawing(self.hparams.sampling, self.hparams.held_out if step < self.second else 0.0)

    def schedule(self, step: int, rates: Rates) -> Rates:
        """The head's rate in the warm-up; restart after the warm-up and when the second training begins."""
        h, begins = self.hparams, step == self.second > 0
        if self.second:
            rates = rates._replace(lr=h.lr * 0.1 ** self.plateau.falls(self._step(step)))
        if self.trains_head_only(step):
            return rates._replace(lr=rates.lr / h.lr * h.head_lr if h.lr else 0.0, restart=begins)
        return rates._replace(restart=begins or self.trains_head_only(step - 1))

    def start_stage(self, step: int) -> None:
        """Start the second training from the initial weights."""
        if step == self.second > 0:
            for network in (self.network, self.mean):
                network.load_state_dict(self.initial.state_dict())

    def validated(self, loss: float, step: int) -> None:
        """Lower the rate if the held-out loss stops falling."""
        if step >= self.head_steps:
            self.plateau.validated(loss, step)

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The usual update, whose weights enter the mean; after the end of the training only a loss."""
        if self.plateau.falls(self._step(step)) == FALLS:
            with torch.no_grad():
                return {"loss": self.outputs(batch, step).risks.mean()}
        metrics = super().update(batch, step)
        share = 1 / max(1, self._step(step) + 3 - self.start)
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
        """Logits (N, C) with the mean of the weights."""
        logits: Tensor = self.mean(x)
        return logits
