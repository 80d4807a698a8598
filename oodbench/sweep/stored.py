"""A sweep's state in its results directory: the plan, stale runs and kept weights."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oodbench.errors import UserError
from oodbench.identity import Digests
from oodbench.results.directory import LAST, Directory
from oodbench.results.ended import ended
from oodbench.results.parquet import specs_of
from oodbench.results.run_directory import kept_weights
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.stale import Stale, Trained, stale
from oodbench.selection import find_rule
from oodbench.sweep.file import Sweep
from oodbench.sweep.launchers import LaunchOptions, RunStatus, statuses_on_disk
from oodbench.sweep.plan import Plan
from oodbench.terminal import Terminal
from oodbench.train.digests import digests_now

SHARED_KEYS = {
    "steps",
    "evaluate_every",
    "network",
    "holdout",
    "validation_environments",
    "draws",
    "shared_quantiles",
}
"""Keys of a sweep file in which all launches into one results directory agree."""
RETRAIN, KEEP = "retrain", "keep"
"""The values of `LaunchOptions.stale` with which a launch accepts stale runs."""
OUTCOME = {RETRAIN: "they are trained again", KEEP: "they are kept"}


def stored_plan(results: Directory) -> dict[str, Any]:
    """The plan of a results directory, see `Directory.plan`; empty before its first launch."""
    return results.plan() if (results.path / "sweep.json").exists() else {}


def specs_in(stored: Mapping[str, Any]) -> list[RunSpec]:
    """The rows of a stored plan."""
    return specs_of(stored["rows"]) if stored else []


def continued(sweep: Sweep, stored: Mapping[str, Any]) -> Sweep:
    """The sweep, with the plug-ins and the kind of draws that a stored plan, if any, has.

    The plan's plug-ins come first; its draws are kept unless the file sets them.
    """
    settings = stored.get("settings", {})
    kept = {
        key: settings["sweep"][key]
        for key in ("draws", "shared_quantiles")
        if key in settings.get("sweep", {}) and key not in sweep.model_fields_set
    }
    plugins = list(dict.fromkeys([*settings.get("plugins", ()), *sweep.plugins]))
    return sweep.model_copy(update=kept | {"plugins": plugins})


def shared_keys(plan: Plan) -> dict[str, Any]:
    """The values of a plan in which all launches into one results directory agree."""
    shared = plan.sweep.model_dump(mode="json", include=SHARED_KEYS)
    return shared | ({"hparams_from": dict(plan.chosen.about)} if plan.chosen else {})


def store_plan(
    results: Directory, plan: Plan, options: LaunchOptions, replacing: bool = False
) -> None:
    """Add a plan to a results directory; for `replacing` see `Directory.write_plan`.

    Raises UserError if the directory holds anything but earlier launches of this sweep.
    """
    sweep, data_dir = plan.sweep, options.data_dir
    launched = {
        "sweep": shared_keys(plan),
        "selection": sweep.selection,
        "protocol": sweep.protocol,
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": list(options.plugins),
        "keep_predictions": options.keep_predictions,
        "keep_weights": list(options.keep_weights),
        "run_timeout": options.run_timeout,
        "launcher": options.launcher,
        "resources": dict(options.resources),
    }
    results.write_plan(sweep.name, launched, plan.rows, replacing=replacing)
    results.keep_findings(plan.findings)


@dataclass(frozen=True)
class Decision:
    """What a launch does with existing runs."""

    plan: Plan
    """The runs of the sweep, with those that are kept in place of others."""
    states: dict[str, State]
    """The state of each run on the disk."""
    again: frozenset[str]
    """The ids of stale runs that are trained again."""


def decide(
    plan: Plan,
    results: Directory,
    stored: Mapping[str, Any],
    options: LaunchOptions,
    console: Terminal,
) -> Decision:
    """Print which runs are stale and decide from the options what to do with them.

    Each run's files are read once. Raises UserError for stale runs if `options.stale` does not
    say what to do with them.
    """
    specs = plan.runs
    for sentence in ended(results.path).wrong:
        console.say(f"{sentence}.")
    replaced = _replaced(plan.rows, specs_in(stored))
    both = {**replaced, **specs}
    statuses = statuses_on_disk(results, both)
    here = digests_now(specs, options.data_dir, results.path) if stored else {}
    found = reasons(results, both, statuses, here)
    old = settled(found, options.stale)
    for reason in found:
        console.say(f"{reason.sentence}{'; ' + OUTCOME[options.stale] if reason.is_known else ''}.")
    again, dropped = old & specs.keys(), old & replaced.keys()
    if options.stale == KEEP:
        kept = {_place(replaced[i]): replaced[i] for i in dropped}
        plan = replace(plan, rows=[kept.get(_place(spec), spec) for spec in plan.rows])
        again = frozenset()
    return Decision(plan, {i: statuses[i].state for i in plan.runs}, again)


def reasons(
    results: Directory,
    specs: Mapping[str, RunSpec],
    statuses: Mapping[str, RunStatus],
    here: Mapping[str, Digests] | None = None,
) -> list[Stale]:
    """The reasons why runs with a result or a checkpoint are stale, see `stale`."""
    trained = [
        Trained(
            *(i, spec.algorithm, spec.network, spec.dataset, spec.dataset_name),
            *(statuses[i].provenance, str(results.path)),
        )
        for i, spec in specs.items()
        if statuses[i].provenance and _has_begun(results, i, statuses[i].state)
    ]
    return stale(trained, here)


def _has_begun(results: Directory, run_id: str, state: State) -> bool:
    return state.complete or (state.at_rest and results.run(run_id).checkpoint.exists())


def settled(found: Sequence[Stale], wish: str) -> frozenset[str]:
    """The ids of stale runs; raises UserError if there are any and no wish says what to do with them."""
    known = [reason for reason in found if reason.is_known]
    if known and not wish:
        raise UserError(
            f"{'; '.join(reason.sentence for reason in known)}: `--stale retrain` trains them again, "
            "`--stale keep` keeps them (in Python `stale='retrain'` and `stale='keep'`)"
        )
    return frozenset(i for reason in known for i in reason.ids)


def _replaced(rows: Sequence[RunSpec], stored: Sequence[RunSpec]) -> dict[str, RunSpec]:
    ids, places = {spec.id for spec in rows}, set(map(_place, rows))
    return {s.id: s for s in stored if s.id not in ids and _place(s) in places}


def _place(spec: RunSpec) -> tuple[Any, ...]:
    return spec.dataset_name, spec.label, spec.test_environments, spec.draw, spec.trial


def check_rules(rules: Sequence[str], specs: Iterable[RunSpec]) -> tuple[str, ...]:
    """The rules by which runs keep weights, each once; raises UserError for an impossible one."""
    specs = list(specs)
    for rule in [find_rule(name, "keep_weights") for name in rules if name != LAST]:
        if not rule.judges_alone:
            raise UserError(
                f"weights cannot be kept by {rule.name}: it judges a run by others, which may end later"
            )
        if not rule.judged(specs):
            raise UserError(f"weights cannot be kept by {rule.name}: it needs {rule.needs}")
    return tuple(dict.fromkeys(rules))


def lacking(
    results: Directory, specs: Mapping[str, RunSpec], rules: Sequence[str]
) -> dict[str, int]:
    """How many of these complete runs lack the weights of each rule that could judge them."""
    if not rules:
        return {}
    kept: dict[str, set[str]] = {run_id: set() for run_id in specs}
    for run_id in results.with_kept(specs):
        kept[run_id] = {rule for rule, _ in kept_weights(results.run(run_id))}
    counts = {}
    for rule in rules:
        judged = set(specs) if rule == LAST else find_rule(rule).judged(list(specs.values()))
        counts[rule] = sum(rule not in kept[run_id] for run_id in judged)
    return {rule: count for rule, count in counts.items() if count}


def weights_files(results: Directory, ids: Iterable[str]) -> list[Path]:
    """The files of kept weights of some runs."""
    runs = map(results.run, results.with_kept(ids))
    return [path for run in runs for path in kept_weights(run).values()]
