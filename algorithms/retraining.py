"""Methods that train a new classifier on the features of ERM: CRT, ReWeightCRT, DFR, AFR."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Algorithm, Problem, first_step
from oodbench.hparams import hparam
from oodbench.networks.base import Network
from oodbench.optimizers import Rates


class Retrained(Algorithm):
    """ERM, then a classifier that is trained from its initial weights on fixed features.

    The second stage begins at step `first_stage` (below 1: a share of the run's steps), with a new
    optimizer; both stages together have the run's steps, and the first one's records are ERM's. In the
    second, the featurizer is in evaluation mode (batch normalisation, dropout).
    """

    changes = "group"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """When the second stage begins."""

        first_stage: int | float = hparam(0.5, low=0)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        self.kept_head = copy.deepcopy(network.classifier).requires_grad_(False)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """A first stage that takes all steps."""
        return {"first_stage": problem.steps}

    def retrains(self, step: int) -> bool:
        """Whether `step` is in the second stage."""
        return bool(step >= first_step(self.hparams.first_stage, self.problem.steps))

    def schedule(self, step: int, rates: Rates) -> Rates:
        """Restart the optimizer when the second stage begins."""
        return rates._replace(restart=self._begins(step))

    def _begins(self, step: int) -> bool:
        return step > 0 and self.retrains(step) and not self.retrains(step - 1)

    def trains_head_only(self, step: int) -> bool:
        """Whether `step` is in the second stage, or `head_only` says so."""
        return self.retrains(step) or super().trains_head_only(step)

    def start_stage(self, step: int) -> None:
        """Reset the classifier to its initial weights when the second stage begins."""
        if self._begins(step):
            for value, first in self._heads():
                value.copy_(first)

    def _heads(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of entries of the classifier's state and the kept head's."""
        now, kept = self.network.classifier.state_dict(), self.kept_head.state_dict()
        return zip(now.values(), kept.values(), strict=True)
