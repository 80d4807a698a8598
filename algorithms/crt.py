"""Classifier retraining, with balanced batches or a balanced loss."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Outputs, Problem, cannot_balance, register
from oodbench.hparams import hparam
from oodbench.steps import Drawing

from .retraining import Retrained
from .reweight import ReWeight


class Rebalanced(Retrained):
    """Retraining whose second stage draws examples by `second_sampling`."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Retrained.Hparams):
        """How the examples of the second stage are drawn, see `sampling`."""

        second_sampling: str = hparam("rwy", options=("rwy", "rwg", "subg"))

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require classes or groups to balance."""
        return cannot_balance(problem, "second_sampling") or super().skip(problem)

    def drawing_at(self, step: int) -> Drawing:
        """Balance the second stage."""
        sampling = "second_sampling" if self.retrains(step) else "sampling"
        return Drawing(getattr(self.hparams, sampling))


@register("CRT", paper="arXiv:1910.09217")
class CRT(Rebalanced):
    """ERM, then a new classifier trained on batches that are balanced over classes or groups.

    cRT: classes are drawn equally often, with replacement (`second_sampling: rwy`), or groups (`rwg`), as
    in SubpopBench (arXiv:2302.12254) if attributes are known. Deviation: the second stage takes part of the
    run's steps; in the paper it is a separate run.
    """


@register("ReWeightCRT", paper="arXiv:2302.12254")
class ReWeightCRT(Retrained, ReWeight):
    """ERM, then a new classifier trained with a loss in which all classes or groups count alike.

    The second stage minimises the objective of `ReWeight`: SubpopBench's variant of `CRT`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Retrained.Hparams, ReWeight.Hparams):
        """The hyperparameters of both methods."""

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk; in the second stage the mean weighted loss."""
        return ReWeight.objective(self, out) if self.retrains(out.step) else out.risks.mean()
