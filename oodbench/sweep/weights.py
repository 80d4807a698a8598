"""Kept weights of a sweep: by which rules, which runs lack theirs, what they take. Imports no torch."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from oodbench.errors import UserError, unknown
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec
from oodbench.results.weights import LAST, kept_weights


def check_rules(rules: Sequence[str], specs: Iterable[RunSpec]) -> tuple[str, ...]:
    """The rules by which runs keep weights, each once; raises UserError for one that no run can serve."""
    from oodbench.selection import find_rule, rule_names

    specs = list(specs)
    for name in rules:
        if name == LAST:
            continue
        if name.partition(":")[0] not in rule_names():
            usable = [n for n in rule_names() if find_rule(n).judges_alone]
            raise unknown("rule", name, [LAST, *usable], "keep_weights")
        rule = find_rule(name)
        if not rule.judges_alone:
            raise UserError(
                f"weights cannot be kept by {rule.name}: it judges a run by others, which may end later"
            )
        if not rule.judged(specs):
            raise UserError(f"weights cannot be kept by {name}: it needs {rule.needs}")
    return tuple(dict.fromkeys(rules))


def served(name: str, specs: Sequence[RunSpec]) -> set[str]:
    """The ids of the runs that a rule can judge by their own records; all for `last`."""
    from oodbench.selection import find_rule

    return {spec.id for spec in specs} if name == LAST else find_rule(name).judged(specs)


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
