"""The registry of requirements on methods, and `check_algorithm`, which checks them all.

A requirement is a function in `requirements`. The first sentence of its docstring states the
requirement; the others say how to keep it, and are printed when it is broken.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps

from torch import Tensor

from oodbench.algorithms import Algorithm, algorithms, why_skipped
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_problem
from oodbench.errors import UserError, described, some
from oodbench.tasks import Task

FLOAT32 = 1e-6
"""The largest relative difference of two numbers that are equal up to float32 round-off."""

HINT = " (if a plug-in defines it: --plugin MODULE, in Python `import MODULE`)"
OF_CLASSES = (
    "A method whose targets must be classes has `needs = Needs(classes=True)` in its class."
)

Requirement = Callable[[type[Algorithm], Task], None]

requirements: list[Requirement] = []
"""All requirements: functions of an algorithm and one of its `tasks_of`, which raise one of the errors
below."""


class DoesNotApply(Exception):
    """A requirement does not apply to this kind of method; the message says why."""


class RoundOff(AssertionError):
    """Numbers are equal in float32 but not in float64, for example because of a float32 constant."""


class Broken(AssertionError):
    """A method breaks a requirement; the message has the `reason` and advice."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}. {advice}" if advice else reason)
        self.reason = reason


Failure = tuple[str, Mapping[str, Broken]]
"""The sentence of a broken requirement, and the errors by kind of task."""


def sentence(requirement: Requirement) -> str:
    """The sentence that states a requirement."""
    return " ".join((requirement.__doc__ or "").split()).partition(". ")[0].rstrip(".")


def requirement(function: Requirement) -> Requirement:
    """Register a requirement; a check of it raises one of the errors above."""

    @wraps(function)
    def check(cls: type[Algorithm], task: Task) -> None:
        try:
            function(cls, task)
        except (DoesNotApply, RoundOff):
            raise
        except UserError as error:
            raise Broken(str(error)) from error
        except Exception as error:
            advice = " ".join((function.__doc__ or "").split()).partition(". ")[2]
            reason = str(error) if isinstance(error, AssertionError) else described(error)
            raise Broken(reason, advice) from error

    requirements.append(check)
    return check


def on_one_task(function: Requirement) -> Requirement:
    """Check a requirement that does not depend on the task on the method's first task only."""

    @wraps(function)
    def check(cls: type[Algorithm], task: Task) -> None:
        if task.kind == tasks_of(cls)[0].kind:
            function(cls, task)

    return check


def tasks_of(cls: type[Algorithm]) -> list[Task]:
    """The tasks that a method does not skip, each as `suited` to it.

    Raises AssertionError if there are none.
    """
    forms = [suited(cls, task) for task in TASKS.values()]
    tasks = [task for task in forms if why_skipped(cls, tiny_problem(task)) is None]
    assert tasks, f"{cls.__name__} skips every kind of task, so that nothing can be checked"
    return tasks


def check_algorithm(algorithm: str | type[Algorithm], say: Callable[[str], object] = print) -> None:
    """Check an algorithm, given by name or as a class, against all `requirements` on all TASKS.

    `say` gets a line for each requirement: kept, broken, or does not apply, with the reason. Raises
    AssertionError with a sentence for each broken requirement, and UserError for an unknown name.
    """
    cls = algorithms.get(algorithm, hint=HINT) if isinstance(algorithm, str) else algorithm
    tasks, broken = tasks_of(cls), dict[str, list[Failure]]()
    for each in requirements:
        say(_outcome(cls, each, tasks, broken))
    for task in TASKS.values():
        if (reason := why_skipped(cls, tiny_problem(suited(cls, task)))) is not None:
            say(f"not tried: {task.kind} tasks, {reason}")
    sentences = []
    without = [task.kind for task in tasks if not task.has_classes]
    for reason, failures in broken.items():  # one mistake often breaks several requirements
        (first, errors), *others = failures
        where = "" if len(errors) == len(tasks) else f" on {', '.join(errors)} tasks"
        why = reason if others else str(next(iter(errors.values())))
        if len(without) < len(tasks) and any([*each] == without for _, each in failures):
            why = f"{reason}. {OF_CLASSES}"
        names = some([f"'{first}{where}'", *(other for other, _ in others)], 1)
        sentences.append(f"{cls.__name__} breaks {names}: {why}")
    if sentences:
        raise AssertionError("\n".join(sentences))


def _outcome(
    cls: type[Algorithm],
    check: Requirement,
    tasks: Sequence[Task],
    broken: dict[str, list[Failure]],
) -> str:
    ending, errors = "", dict[str, Broken]()
    for task in tasks:
        try:
            check(cls, task)
        except DoesNotApply as error:
            return f"does not apply: {sentence(check)} ({error})"
        except RoundOff:
            ending = " (to float32's round-off)"
        except Broken as error:
            errors[task.kind] = error
    if not errors:
        return f"kept: {sentence(check)}{ending}"
    reason = next(iter(errors.values())).reason
    broken.setdefault(reason, []).append((sentence(check), errors))
    return f"broken: {sentence(check)}"


def require_close(given: Tensor, wanted: Tensor, what: str) -> None:
    """Raise AssertionError unless tensors are equal to float64's round-off of the largest component.

    The error is `RoundOff` if the tensors are equal in float32.
    """
    error = float((given - wanted).abs().max())
    scale = float(wanted.abs().max())
    if not error <= 1e-9 * (1 + scale):
        kind = RoundOff if error <= FLOAT32 * (1 + scale) else AssertionError
        raise kind(f"{what} (by {error:.3g}, at a scale of {scale:.3g})")
