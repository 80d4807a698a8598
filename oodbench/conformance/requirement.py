"""What a requirement of the contract is, and one call that puts a method through all of them.

It prints which hold, which do not apply and which are broken:

    from oodbench.conformance import check_algorithm

    check_algorithm(MyMethod)

Each requirement is the docstring of one of the functions in `functions` and `updates`.
"""

from collections.abc import Callable, Sequence
from functools import wraps

from torch import Tensor

from oodbench.algorithms import Algorithm, algorithms, why_skipped
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_problem
from oodbench.tasks import Task

Requirement = Callable[[type[Algorithm], Task], None]

requirements: list[Requirement] = []
"""Every requirement as a function of an algorithm and a task; it raises AssertionError where it is broken,
and `DoesNotApply` where the method is not of the sort that it is about."""


class DoesNotApply(Exception):
    """The reason why a requirement does not apply to a method."""


def sentence(requirement: Requirement) -> str:
    """The sentence that a requirement stands for."""
    return " ".join((requirement.__doc__ or "").split()).partition(". ")[0].rstrip(".")


def requirement(function: Requirement) -> Requirement:
    """Add a requirement, to hold on the problems that the algorithm does not skip."""

    @wraps(function)
    def check(cls: type[Algorithm], task: Task) -> None:
        task = suited(cls, task)
        if _reason_to_skip(cls, task) is not None:
            return
        try:
            function(cls, task)
        except DoesNotApply:
            raise
        except Exception as error:
            advice = " ".join((function.__doc__ or "").split()).partition(". ")[2]
            raise AssertionError(
                f"{cls.__name__} breaks the requirement '{sentence(function)}' on a {task.kind} task: "
                f"{error} {advice}".rstrip()
            ) from error

    requirements.append(check)
    return check


def on_one_task(function: Requirement) -> Requirement:
    """Ask a requirement that does not depend on the task on the method's first task alone."""

    @wraps(function)
    def check(cls: type[Algorithm], task: Task) -> None:
        if task.kind == tasks_of(cls)[0].kind:
            function(cls, task)

    return check


def tasks_of(cls: type[Algorithm]) -> list[Task]:
    """The tasks that a method does not skip; raises AssertionError if it skips all."""
    tasks = [task for task in TASKS.values() if _reason_to_skip(cls, suited(cls, task)) is None]
    assert tasks, f"{cls.__name__} skips every kind of task, so that nothing can be checked"
    return tasks


def _reason_to_skip(cls: type[Algorithm], task: Task) -> str | None:
    return why_skipped(cls, tiny_problem(task))


def check_algorithm(algorithm: str | type[Algorithm]) -> None:
    """Put an algorithm, a registered name or a class, through all `requirements` on all `TASKS`.

    Every requirement is tried and printed, kept, broken or not applicable with the reason. Raises
    AssertionError with a sentence for each broken one, and UserError for an unknown name.
    """
    cls = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    tasks, broken = tasks_of(cls), list[str]()
    for each in requirements:
        print(_outcome(cls, each, tasks, broken))
    for task in TASKS.values():
        if task not in tasks:
            print(f"not tried: {task.kind} tasks, {_reason_to_skip(cls, suited(cls, task))}")
    assert not broken, "\n".join(broken)


def _outcome(
    cls: type[Algorithm], check: Requirement, tasks: Sequence[Task], broken: list[str]
) -> str:
    """Try a requirement on some tasks; adds a sentence to `broken` for each on which it does not hold."""
    before = len(broken)
    for task in tasks:
        try:
            check(cls, task)
        except DoesNotApply as reason:
            return f"does not apply: {sentence(check)} ({reason})"
        except AssertionError as error:
            broken.append(str(error))
    return f"{'broken' if len(broken) > before else 'kept'}: {sentence(check)}"


def require_close(given: Tensor, wanted: Tensor, what: str) -> None:
    """Equality to float64's round-off, relative to the largest component."""
    error = float((given - wanted).abs().max())
    scale = float(wanted.abs().max())
    assert error <= 1e-9 * (1 + scale), f"{what} (by {error:.3g}, at a scale of {scale:.3g})"
