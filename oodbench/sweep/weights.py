"""Kept weights of a sweep: by which rules, which runs lack theirs, what they take. Imports no torch."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from oodbench.errors import UserError, unknown
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec
from oodbench.results.weights import LAST, kept_weights


def check_rules(rules: Sequence[str], specs: Iterable[RunSpec]) -> tuple[str, ...]:
    """The rules by which runs keep weights, each once; raises UserError for one that no run can serve."""
    from oodbench.selection import RULES, find_rule

    specs, own = list(specs), [LAST, *(name for name in RULES if name != "leave_one_out")]
    for name in rules:
        if name == LAST:
            continue
        base = name.partition(":")[0]
        if base == "leave_one_out":
            raise UserError(
                "weights cannot be kept by leave_one_out: it judges a run by others, which may end later"
            )
        if base not in own:
            raise unknown("rule", name, own, "keep_weights")
        if not served(name, specs):
            raise UserError(f"weights cannot be kept by {name}: it needs {find_rule(name).needs}")
    return tuple(dict.fromkeys(rules))


def served(name: str, specs: Sequence[RunSpec]) -> set[str]:
    """The ids of the runs that a rule can judge by their own records; all for `last`."""
    if name == LAST:
        return {spec.id for spec in specs}
    import pandas as pd

    from oodbench.selection import find_rule

    rows = [
        {
            "id": spec.id,
            "holdout": spec.holdout,
            "test_environments": spec.test_environments,
            "validation_environments": spec.validation_environments,
            "training_environments": ("any",),
        }
        for spec in specs
    ]
    return set(find_rule(name).evidence(pd.DataFrame(rows))["id"]) if rows else set()


def lacking(results: Results, specs: Mapping[str, RunSpec], rules: Sequence[str]) -> dict[str, int]:
    """How many of the runs that have ended lack the weights of each rule that could judge them."""
    found = {}
    ended = [spec for run_id, spec in specs.items() if results.run(run_id).state().complete]
    kept = {spec.id: {rule for rule, _ in kept_weights(results.run(spec.id))} for spec in ended}
    for rule in rules:
        count = sum(rule not in kept[run_id] for run_id in served(rule, ended))
        if count:
            found[rule] = count
    return found


def weights_files(results: Results, ids: Iterable[str]) -> list[Path]:
    """The files of kept weights of some runs."""
    return [path for run_id in ids for path in kept_weights(results.run(run_id)).values()]
