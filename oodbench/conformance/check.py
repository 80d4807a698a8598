"""One call that puts an algorithm of your own through all rules, registered or not.

It prints which were kept, which do not apply and which are broken:

    from oodbench.conformance import check_algorithm

    check_algorithm(MyMethod)

Each rule is the docstring of one of the functions in `functions` and `updates`.
"""

from collections.abc import Sequence

from oodbench.algorithms import Algorithm, algorithms, why_skipped
from oodbench.conformance.rule import Check, DoesNotApply, checks, sentence
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_problem
from oodbench.tasks import Task


def check_algorithm(algorithm: str | type[Algorithm]) -> None:
    """Put an algorithm, a registered name or a class, through all `checks` on all `TASKS`.

    Every rule is tried and printed, kept, broken or not applicable with the reason. Raises
    AssertionError with a sentence for each broken rule, and UserError for an unknown name.
    """
    cls = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    reasons = {
        task.kind: why_skipped(cls, tiny_problem(suited(cls, task))) for task in TASKS.values()
    }
    tried = [task for task in TASKS.values() if reasons[task.kind] is None]
    assert tried, f"{cls.__name__} skips every kind of task, so that nothing can be checked"
    broken: list[str] = []
    for check in checks:
        print(_outcome(cls, check, tried, broken))
    for kind, reason in reasons.items():
        if reason is not None:
            print(f"not tried: {kind} tasks, {reason}")
    assert not broken, "\n".join(broken)


def _outcome(cls: type[Algorithm], check: Check, tasks: Sequence[Task], broken: list[str]) -> str:
    """Try a rule on some tasks; adds a sentence to `broken` for each on which it does not hold."""
    rule = sentence(check)
    before = len(broken)
    for task in tasks:
        try:
            check(cls, task)
        except DoesNotApply as reason:
            return f"does not apply: {rule} ({reason})"
        except AssertionError as error:
            broken.append(str(error))
    return f"{'broken' if len(broken) > before else 'kept'}: {rule}"
