"""The requirements, each the docstring of a function in `functions` or `updates`, and a check of all."""

from collections.abc import Callable, Sequence
from functools import wraps

from torch import Tensor

from oodbench.algorithms import Algorithm, algorithms, why_skipped
from oodbench.blame import described
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_problem
from oodbench.errors import UserError
from oodbench.tasks import Task

FLOAT32 = 1e-6
"""The largest relative difference of two numbers that are equal up to a few roundings in float32."""

Requirement = Callable[[type[Algorithm], Task], None]

requirements: list[Requirement] = []
"""Every requirement as a function of an algorithm and a task; it raises AssertionError where it is broken,
and `DoesNotApply` where the method is not of the sort that it is about."""


class DoesNotApply(Exception):
    """The reason why a requirement does not apply to a method."""


class RoundOff(AssertionError):
    """Two numbers are equal up to float32's round-off, as where a method has constants in float32."""


def sentence(requirement: Requirement) -> str:
    """The sentence that a requirement stands for."""
    return " ".join((requirement.__doc__ or "").split()).partition(". ")[0].rstrip(".")


def requirement(function: Requirement) -> Requirement:
    """Add a requirement, to hold on the problems that the algorithm does not skip."""

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
            broken = RoundOff if isinstance(error, RoundOff) else AssertionError
            raise broken(
                f"{cls.__name__} breaks the requirement '{sentence(function)}' on a {task.kind} task: "
                f"{_reason(function, error)}"
            ) from error

    requirements.append(check)
    return check


def _reason(requirement: Requirement, error: Exception) -> str:
    if isinstance(error, UserError):
        return f"{error}"
    advice = " ".join((requirement.__doc__ or "").split()).partition(". ")[2]
    reason = str(error) if isinstance(error, AssertionError) else described(error)
    return f"{reason}. {advice}" if advice else reason


def on_one_task(function: Requirement) -> Requirement:
    """Ask a requirement that does not depend on the task on the method's first task alone."""

    @wraps(function)
    def check(cls: type[Algorithm], task: Task) -> None:
        if task.kind == tasks_of(cls)[0].kind:
            function(cls, task)

    return check


def tasks_of(cls: type[Algorithm]) -> list[Task]:
    """The tasks that a method does not skip; raises AssertionError if it skips all."""
    tasks = [
        task for task in TASKS.values() if why_skipped(cls, tiny_problem(suited(cls, task))) is None
    ]
    assert tasks, f"{cls.__name__} skips every kind of task, so that nothing can be checked"
    return tasks


def check_algorithm(algorithm: str | type[Algorithm], say: Callable[[str], object] = print) -> None:
    """Put an algorithm, a registered name or a class, through all `requirements` on all `TASKS`.

    Every requirement is tried and told to `say`, kept, broken or not applicable with the reason. Raises
    AssertionError with a sentence for each broken one, on the first task that shows it, and UserError for
    an unknown name.
    """
    cls = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    tasks, broken = tasks_of(cls), dict[str, list[str]]()
    for each in requirements:
        say(_outcome(cls, each, tasks, broken))
    for task in TASKS.values():
        if task not in tasks:
            say(
                f"not tried: {task.kind} tasks, {why_skipped(cls, tiny_problem(suited(cls, task)))}"
            )
    sentences = []
    for reason, (first, *others) in broken.items():
        more = f" and {len(others)} more" if others else ""
        sentences.append(f"{cls.__name__} breaks '{first}'{more}: {reason}")
    if sentences:
        raise AssertionError("\n".join(sentences))


def _outcome(
    cls: type[Algorithm],
    check: Requirement,
    tasks: Sequence[Task],
    broken: dict[str, list[str]],
) -> str:
    ending, reasons = "", dict[str, str]()
    for task in tasks:
        try:
            check(cls, task)
        except DoesNotApply as error:
            return f"does not apply: {sentence(check)} ({error})"
        except RoundOff:
            ending = " (to float32's round-off)"
        except AssertionError as error:
            cause = error.__cause__
            reasons[task.kind] = _reason(check, cause if isinstance(cause, Exception) else error)
    if not reasons:
        return f"kept: {sentence(check)}{ending}"
    kinds, reason = [*reasons], next(iter(reasons.values()))
    where = "" if len(kinds) == len(tasks) else f" on {', '.join(kinds)} tasks"
    broken.setdefault(reason, []).append(sentence(check) + where)
    return f"broken: {sentence(check)}"


def require_close(given: Tensor, wanted: Tensor, what: str) -> None:
    """Require equality to float64's round-off, relative to the largest component.

    Raises AssertionError, a `RoundOff` for what are equal numbers in float32.
    """
    error = float((given - wanted).abs().max())
    scale = float(wanted.abs().max())
    if not error <= 1e-9 * (1 + scale):
        kind = RoundOff if error <= FLOAT32 * (1 + scale) else AssertionError
        raise kind(f"{what} (by {error:.3g}, at a scale of {scale:.3g})")
