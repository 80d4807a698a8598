"""The contract that every registered algorithm keeps."""

import contextlib
import itertools
import re
from collections.abc import Sequence

import pytest
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, algorithms, why_skipped
from oodbench.conformance import check_algorithm
from oodbench.conformance.requirement import DoesNotApply, Requirement, requirements, tasks_of
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_problem
from oodbench.errors import UserError
from oodbench.steps import trains_network
from oodbench.tasks import Task

FOLDER = [
    name
    for name in algorithms
    if algorithms.get(name).__module__.startswith("oodbench.algorithms.")
]


LINEAR_STUDIES = {"ICP", "LinearIRM", "LinearVREx"}
"""Fitted by code of their own to a regression with a single output, which their tests compare."""
CHECKED = [name for name in FOLDER if name not in LINEAR_STUDIES]


def require_all(name: str, wanted: Sequence[Requirement], tasks: Sequence[Task]) -> None:
    """Put a method through requirements on each of some tasks."""
    for check, task in itertools.product(wanted, tasks):
        with contextlib.suppress(DoesNotApply):
            check(algorithms.get(name), task)


@pytest.mark.parametrize("name", CHECKED)
def test_a_method_keeps_the_requirements_on_one_task(name: str) -> None:
    quick = [check for check in requirements if check.__name__ != "every_draw_trains"]
    require_all(name, quick, tasks_of(algorithms.get(name))[:1])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "ERM")) for n in CHECKED]
)
def test_a_method_keeps_the_requirements_on_every_task(name: str) -> None:
    require_all(name, requirements, tasks_of(algorithms.get(name)))


def test_no_registered_algorithm_skips_a_kind_of_task_with_five_environments() -> None:
    """But those that are about classes."""
    classes = {"CondCAD", "JTT", "LISA", "RSC", "SagNet", "SelfReg"}
    for name in FOLDER:
        for task in TASKS.values() if trains_network(algorithms.get(name)) else ():
            has_classes = task.kind in ("binary", "multiclass")
            skipped = name in classes and not has_classes
            problem = tiny_problem(suited(algorithms.get(name), task))
            assert (why_skipped(algorithms.get(name), problem) is not None) == skipped


@pytest.mark.slow
def test_a_name_or_an_unregistered_class_is_checked_with_one_call(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Own(Algorithm):
        """The sum of the risks."""

        def objective(self, out: Outputs) -> Tensor:
            return out.risks.sum()

    check_algorithm("ERM")
    told = capsys.readouterr().out
    for reason in ("it is ERM at any hyperparameters", "it combines no signs"):
        assert re.search(rf"^does not apply: .* \({reason}\)$", told, re.MULTILINE)
    assert {line.partition(": ")[0] for line in told.splitlines()} == {"kept", "does not apply"}
    check_algorithm(Own)
    assert " (it has no neutral hyperparameters)\n" in capsys.readouterr().out
    with pytest.raises(UserError, match="did you mean ERM"):
        check_algorithm("ermm")


def test_every_broken_requirement_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Algorithm):
        def objective(self, out: Outputs) -> Tensor:
            return out.risks.mean() / (out.step < 2)

    with pytest.raises(AssertionError, match=r"has no docstring(?s:.*)'loss' is inf at step 2"):
        check_algorithm(Broken)
    told = capsys.readouterr().out
    assert "broken: Losses, metrics and parameters stay finite" in told and "kept: " in told


def test_an_algorithm_that_skips_everything_is_not_taken_for_checked() -> None:
    class Never(Algorithm):
        """Skips everything."""

        @classmethod
        def skip(cls, problem: object) -> str:
            return "never"

    with pytest.raises(AssertionError, match="Never skips every kind of task"):
        check_algorithm(Never)
