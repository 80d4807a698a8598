"""The contract that every registered algorithm keeps."""

import contextlib

import pytest
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, algorithms
from oodbench.conformance import check_algorithm
from oodbench.conformance.rule import Check, DoesNotApply, checks
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_problem
from oodbench.errors import UserError
from oodbench.tasks import Task

FOLDER = [
    name
    for name in algorithms
    if algorithms.get(name).__module__.startswith("oodbench.algorithms.")
]
CHECKS = [
    pytest.param(
        check,
        id=check.__name__,
        marks=[pytest.mark.slow] * (check.__name__ == "every_draw_trains"),
    )
    for check in checks
]


@pytest.mark.parametrize("check", CHECKS)
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
    classes = {"CondCAD", "JTT", "LISA", "RSC", "SagNet", "SelfReg"}
    for name in FOLDER:
        for task in TASKS.values() if algorithms.get(name).trains_network else ():
            has_classes = task.kind in ("binary", "multiclass")
            skipped = name in classes and not has_classes
            problem = tiny_problem(suited(algorithms.get(name), task))
            assert (algorithms.get(name).skip(problem) is not None) == skipped


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
