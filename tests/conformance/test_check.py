"""The contract that every registered algorithm keeps."""

import contextlib
import re

import pytest
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, algorithms, why_skipped
from oodbench.conformance import check_algorithm
from oodbench.conformance.rule import Check, DoesNotApply, checks
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_problem
from oodbench.errors import UserError
from oodbench.steps import trains_network

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
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # the quick tests have every kind of task with ERM, and every method with one
        pytest.param(
            name, kind, marks=[pytest.mark.slow] * (kind != "multiclass" and name != "ERM")
        )
        for name in FOLDER
        for kind in TASKS
    ],
)
def test_conformance(name: str, kind: str, check: Check) -> None:
    with contextlib.suppress(DoesNotApply):
        check(algorithms.get(name), TASKS[kind])


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


def test_every_broken_rule_is_told(capsys: pytest.CaptureFixture[str]) -> None:
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
