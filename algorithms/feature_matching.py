"""Methods that pull the environments' distributions of features together: CORAL, MMD, CausIRL."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem
from oodbench.hparams import hparam, log_uniform


class FeatureMatching(Algorithm, ABC):
    """Mean risk plus penalty_weight * a squared distance between distributions of features.

    A subclass implements `distance`.
    """

    needs = Needs(environments=2, feature_vector=True)
    changes = "penalty"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434, D.2 (gamma)."""

        penalty_weight: float = hparam(1.0, log_uniform(1e-1, 1e1), low=0.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out the penalty, which is ERM."""
        return {"penalty_weight": 0.0}

    @abstractmethod
    def distance(self, out: Outputs) -> Tensor:
        """The squared distance between distributions of features, a scalar."""

    def objective(self, out: Outputs) -> Tensor:
        """Mean risk + penalty_weight * distance."""
        penalty = self.distance(out)
        out.metrics["penalty"] = penalty.detach()
        return out.risks.mean() + self.hparams.penalty_weight * penalty
