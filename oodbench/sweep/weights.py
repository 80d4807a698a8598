"""Kept weights of a sweep: their rules, the runs that lack them, and their files."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from oodbench.errors import UserError
from oodbench.results.directory import LAST, Results, kept_weights
from oodbench.results.run_spec import RunSpec


def check_rules(rules: Sequence[str], specs: Iterable[RunSpec]) -> tuple[str, ...]:
    """Return the rules by which runs keep weights, without repetitions; raises UserError for an impossible
    one.
    """
    from oodbench.selection import find_rule

    specs = list(specs)
    for rule in [find_rule(name, "keep_weights") for name in rules if name != LAST]:
        if not rule.judges_alone:
            raise UserError(
                f"weights cannot be kept by {rule.name}: it judges a run by others, which may end later"
            )
        if not rule.judged(specs):
            raise UserError(f"weights cannot be kept by {rule.name}: it needs {rule.needs}")
    return tuple(dict.fromkeys(rules))


def lacking(results: Results, specs: Mapping[str, RunSpec], rules: Sequence[str]) -> dict[str, int]:
    """Return how many of these complete runs lack the weights of each rule that could judge them."""
    from oodbench.selection import find_rule

    if not rules:
        return {}
    kept = {i: {rule for rule, _ in kept_weights(results.run(i))} for i in specs}
    counts = {}
    for rule in rules:
        judged = set(specs) if rule == LAST else find_rule(rule).judged(list(specs.values()))
        counts[rule] = sum(rule not in kept[run_id] for run_id in judged)
    return {rule: count for rule, count in counts.items() if count}


def weights_files(results: Results, ids: Iterable[str]) -> list[Path]:
    """Return the files of kept weights of some runs."""
    return [path for run_id in ids for path in kept_weights(results.run(run_id)).values()]
