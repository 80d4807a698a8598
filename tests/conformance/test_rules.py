"""Every registered algorithm through the public conformance suite; and the suite catches what it should."""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Outputs, Problem, algorithms
from oodbench.conformance.rules import Check, DoesNotApply, check_algorithm, checks
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.errors import UserError
from oodbench.gradients.backward import Reduction
from oodbench.hparams import hparam, log_uniform, uniform
from oodbench.tasks import Task

FOLDER = [
    name
    for name in algorithms
    if algorithms.get(name).__module__.startswith("oodbench.algorithms.")
]


@pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
@pytest.mark.parametrize("name", FOLDER)
def test_conformance(name: str, task: Task, check: Check) -> None:
    with contextlib.suppress(DoesNotApply):
        check(algorithms.get(name), task)


def test_six_methods_and_two_variants_are_registered() -> None:
    names = {"ERM", "IRM", "VREx", "MMREx", "RI", "ANDMask", "DANN", "CDANN"}
    assert names <= set(FOLDER)


def test_no_registered_algorithm_skips_a_kind_of_task_with_five_environments() -> None:
    """But those that are about classes."""
    classes = {"CondCAD", "RSC", "SelfReg"}
    for name in FOLDER:
        for task in TASKS.values() if algorithms.get(name).trains_network else ():
            has_classes = task.kind in ("binary", "multiclass")
            skipped = name in classes and not has_classes
            assert (algorithms.get(name).skip(tiny_problem(task)) is not None) == skipped


def test_a_name_or_an_unregistered_class_is_checked_with_one_call() -> None:
    class Own(Algorithm):
        """The sum of the risks."""

        def objective(self, out: Outputs) -> Tensor:
            return out.risks.sum()

    check_algorithm("ERM")
    check_algorithm(Own)
    with pytest.raises(UserError, match="did you mean ERM"):
        check_algorithm("ermm")


def test_an_algorithm_that_skips_everything_is_not_taken_for_checked() -> None:
    class Never(Algorithm):
        """Skips everything."""

        @classmethod
        def skip(cls, problem: object) -> str:
            return "never"

    with pytest.raises(AssertionError, match="Never skips every kind of task"):
        check_algorithm(Never)


class Undescribed(Algorithm):
    def objective(self, out: Outputs) -> Tensor:
        return 2 * out.risks.mean()


class TwoLevels(Algorithm):
    """An objective that nothing ever calls."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.max()

    def combine(self, gradients: Tensor) -> Tensor:
        return 2 * gradients.mean(0)


class Infinite(Algorithm):
    """A loss that is not finite."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() / (out.step < 2)


class JustERM(Algorithm):
    """ERM that says it is something else."""


class NotNeutral(Algorithm):
    """Never ERM, although it says so."""

    @classmethod
    def neutral(cls, problem: Any) -> dict[str, Any]:
        return {"lr": 0.02}

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.max()


class Ordered(Algorithm):
    """The first environment alone."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks[0]


class Forgetful(Algorithm):
    """A running mean of the risk in a plain attribute, lost when a run resumes."""

    mean = 1.0

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        self.optimizers["main"].zero_grad()
        loss = self.outputs(batch, step).risks.mean() * (1 + self.mean)
        self.mean = 0.5 * self.mean + loss.item()
        loss.backward()  # type: ignore[no-untyped-call]
        self.step_optimizer(self.optimizers["main"], step)
        return {"loss": loss.detach()}


class Attached(Algorithm):
    """A metric that keeps the graph alive."""

    def objective(self, out: Outputs) -> Tensor:
        out.metrics["worst"] = out.risks.max()
        return out.risks.max()


class NeedsTwoExamples(Algorithm):
    """A sample variance within each environment."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() + out.losses.var(1).mean()


class NeedsTwoEnvironments(Algorithm):
    """A sample variance over environments."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() + out.risks.var()


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


class OtherSigns(Algorithm):
    """A sum of gradients, and a mean where signs are to suffice."""

    @property
    def reduction(self) -> Reduction:
        return Reduction(combine=self.combine, combine_signs=lambda net, mean, units: 2 * mean)

    def combine(self, gradients: Tensor) -> Tensor:
        return gradients.sum(0)


class OutOfLimits(Algorithm):
    """Draws that a user could not set."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """With a weight."""

        weight: float = hparam(1.0, log_uniform(0.1, 10.0), low=0.5)

    def objective(self, out: Outputs) -> Tensor:
        return torch.mul(out.risks.max(), self.hparams.weight)


@pytest.mark.parametrize(
    ("cls", "sentence"),
    [
        (Undescribed, "has no docstring"),
        (TwoLevels, "overrides both"),
        (Infinite, "'loss' is inf at step 2"),
        (JustERM, "the two gradients are equal"),
        (NotNeutral, "differs from ERM's at step 0"),
        (Ordered, "depends on the environments' order"),
        (Forgetful, "differs after resuming"),
        (Attached, "'worst' is not detached"),
        (NeedsTwoExamples, "a single example .* 'loss' is nan"),
        (NeedsTwoEnvironments, "single training environment .* 'loss' is nan"),
        (Noisy, "the same value twice"),
        (Branching, "a drawn number as a tensor.*write arithmetic or `torch.where`"),
        (BranchingCombine, "a drawn number as a tensor.*write arithmetic or `torch.where`"),
        (OtherSigns, "`combine_signs` differs"),
        (OutOfLimits, "'weight' in the hyperparameters of OutOfLimits must be at least 0.5"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
@pytest.mark.filterwarnings("ignore:var..:UserWarning")
def test_a_broken_rule_is_named(cls: type[Algorithm], sentence: str) -> None:
    with pytest.raises(AssertionError, match=rf"{cls.__name__} breaks the rule .*{sentence}"):
        check_algorithm(cls)


def test_a_step_may_be_of_some_environments() -> None:
    cls: Any = algorithms.get("ERM")
    problem = Problem((4,), TASKS["binary"], tuple("abcdefgh"), 1000, seed=3)

    def drawn(seed: int, count: int, name: str = "ERM") -> list[list[int]]:
        of = replace(problem, seed=seed)
        algorithm = tiny_algorithm(algorithms.get(name), of, {"environments_per_step": count})
        return [list(algorithm.environments_at(step)) for step in range(400)]

    assert drawn(3, 0) == drawn(3, 8) == drawn(3, 9) == [list(range(8))] * 400
    some = drawn(3, 3)
    assert all(len(set(step)) == 3 for step in some)
    assert some == drawn(3, 3, "VREx") and some != drawn(4, 3)
    counts = torch.bincount(torch.tensor(some).flatten(), minlength=8)
    assert counts.sum() == 1200 and 110 < counts.min() and counts.max() < 190  # 150 expected
    assert cls.Hparams().environments_per_step == 0


def test_a_discriminator_is_told_which_environments_a_step_is_of() -> None:
    problem = Problem((4,), TASKS["binary"], tuple("abcde"), 1000)
    algorithm: Any = tiny_algorithm(algorithms.get("DANN"), problem, {"environments_per_step": 2})
    algorithm.environments_at = lambda step: [4, 1]
    out = algorithm.outputs(tiny_batch(TASKS["binary"], 0, 2), 7)
    algorithm.objective(out)
    logits = algorithm.discriminator(out.features.flatten(0, 1))
    labels = torch.tensor([4] * 6 + [1] * 6)
    wanted = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(out.metrics["discriminator_loss"], wanted)
