"""What a rule of the contract is."""

from collections.abc import Callable
from functools import wraps

from torch import Tensor

from oodbench.algorithms import Algorithm, why_skipped
from oodbench.conformance.tiny_problems import suited, tiny_problem
from oodbench.tasks import Task

Check = Callable[[type[Algorithm], Task], None]


checks: list[Check] = []
"""Every rule as a function of an algorithm and a task; it raises AssertionError where it is broken, and
`DoesNotApply` where the method is not of the kind that the rule is about."""


class DoesNotApply(Exception):
    """The reason why a rule does not apply to a method."""


def sentence(check: Check) -> str:
    """The rule that a check stands for."""
    return " ".join((check.__doc__ or "").split()).partition(". ")[0].rstrip(".")


def rule(function: Check) -> Check:
    """Add a check, to hold on the problems that the algorithm does not skip."""

    @wraps(function)
    def check(cls: type[Algorithm], task: Task) -> None:
        task = suited(cls, task)
        if why_skipped(cls, tiny_problem(task)) is not None:
            return
        try:
            function(cls, task)
        except DoesNotApply:
            raise
        except Exception as error:
            advice = " ".join((function.__doc__ or "").split()).partition(". ")[2]
            raise AssertionError(
                f"{cls.__name__} breaks the rule '{sentence(function)}' on a {task.kind} task: "
                f"{error} {advice}".rstrip()
            ) from error

    checks.append(check)
    return check


def require_close(found: Tensor, wanted: Tensor, what: str) -> None:
    """Equality to float64's round-off, relative to the largest component."""
    error = float((found - wanted).abs().max())
    scale = float(wanted.abs().max())
    assert error <= 1e-9 * (1 + scale), f"{what} (by {error:.3g}, at a scale of {scale:.3g})"
