"""Methods that break one requirement each of the functions that they override."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs
from oodbench.conformance import functions
from oodbench.conformance.requirement import Requirement
from oodbench.conformance.tiny_problems import TASKS
from oodbench.gradients.backward import Reduction
from oodbench.hparams import hparam, uniform
from oodbench.steps import CustomStep


class Undescribed(Algorithm):
    def objective(self, out: Outputs) -> Tensor:
        return 2 * out.risks.mean()


class TwoLevels(Algorithm):
    """An objective that nothing ever calls."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.max()

    def combine(self, gradients: Tensor) -> Tensor:
        return 2 * gradients.mean(0)


class Noisy(Algorithm):
    """Another random objective at every call."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() * (1 + torch.rand(()))


class Branching(Algorithm):
    """A Python branch on a number that is drawn."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """With a weight."""

        weight: float = hparam(1.0, uniform(0.5, 2.0))

    def objective(self, out: Outputs) -> Tensor:
        if self.hparams.weight > 1:
            return out.risks.max()
        return out.risks.sum()


class BranchingCombine(Algorithm):
    """The same where gradients are combined."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """With a weight."""

        weight: float = hparam(1.0, uniform(0.5, 2.0))

    def combine(self, gradients: Tensor) -> Tensor:
        return gradients.amax(0) if self.hparams.weight > 1 else gradients.sum(0)


class OtherSigns(CustomStep):
    """A sum of gradients, and a mean where signs are to suffice."""

    @property
    def reduction(self) -> Reduction:
        return Reduction(combine=self.combine, combine_signs=lambda net, mean, units: 2 * mean)

    def combine(self, gradients: Tensor) -> Tensor:
        return gradients.sum(0)


@pytest.mark.parametrize(
    ("cls", "check", "sentence"),
    [
        (Undescribed, functions.overrides_one_level, "has no docstring"),
        (TwoLevels, functions.overrides_one_level, "overrides both"),
        (Noisy, functions.objective_is_pure, "the same value twice"),
        (
            Branching,
            functions.trains_many_runs_as_one,
            "a drawn number as a tensor.*write arithmetic or `torch.where`",
        ),
        (
            BranchingCombine,
            functions.trains_many_runs_as_one,
            "a drawn number as a tensor.*write arithmetic or `torch.where`",
        ),
        (OtherSigns, functions.combines_signs_as_gradients, "`combine_signs` differs"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_requirement_is_named(
    cls: type[Algorithm], check: Requirement, sentence: str
) -> None:
    with pytest.raises(
        AssertionError, match=rf"{cls.__name__} breaks the requirement .*{sentence}"
    ):
        check(cls, TASKS["binary"])
