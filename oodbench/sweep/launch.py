"""Launches the runs of a sweep, or some runs by id, and decides what becomes of stored runs.

A sweep passes through a launch in this order: its plan, what its results directory holds, a launcher, the
leaderboard. A launch with nothing to train starts no process and writes nothing.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from operator import attrgetter
from typing import Any

import typer

from oodbench.arithmetic import lost_here
from oodbench.errors import PLUGIN_HINT, UserError, missing_package, wrong_result
from oodbench.registry import load_plugins
from oodbench.results.directory import LAST, PLAN_KEY, ROW_LABELS, Directory, compact
from oodbench.results.ended import ended
from oodbench.results.parquet import specs_of
from oodbench.results.run_spec import DIWA, RunSpec, State
from oodbench.results.stale import Stale, stale_in
from oodbench.selection import find_rule
from oodbench.sweep.file import Sweep
from oodbench.sweep.launchers import Job, Launcher, launchers
from oodbench.sweep.launchers import LaunchOptions as LaunchOptions
from oodbench.sweep.plan import Plan, make_plan, show_plan
from oodbench.terminal import counted, printable, terminal
from oodbench.train.digests import digests_now
from oodbench.validation import short

COMPACT_SECONDS = 30.0
"""Seconds between two compactions while runs are trained."""
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
TRAINING = ("options", "noise", "steps", "evaluate_every", "holdout", "network")
"""The fields in which the rows of a dataset agree, so that their gains are paired."""
RETRAIN, KEEP = "retrain", "keep"
"""The values of `LaunchOptions.stale` with which a launch accepts stale runs."""
OUTCOME = {RETRAIN: "they are trained again", KEEP: "they are kept"}


def launch(sweep: Sweep, options: LaunchOptions) -> Counter[State]:
    """Train the runs of a sweep that have not ended yet, and print its leaderboard.

    Returns the number of runs of the sweep by state, empty after a dry run. Repeating an interrupted
    launch resumes it. Raises UserError for what cannot be launched, and KeyboardInterrupt when it is
    interrupted.
    """
    results = Directory(options.out)
    stored = results.plan() if (results.path / "sweep.json").exists() else {}
    sweep = _continued(sweep, stored, options.plugins)
    load_plugins(sweep.plugins)
    launcher = launchers.get(options.launcher)()
    if not stored or {*stored["rows"]["id"]} - ended(results.path).states.keys():
        launcher.warm_up()
    plan, options = _planned(sweep, options, results)
    plan, before, again = _with_stored(plan, results, stored, options)
    ids = tuple(
        run_id
        for run_id, state in before.items()
        if run_id in again or not state.final or (options.failed and not state.complete)
    )
    job = Job(name=sweep.name, results=results, specs=plan.runs, ids=ids, options=options)
    if options.dry_run:
        launcher.preview(job, terminal())
        return Counter()
    launcher.check(job)
    if ids and options.confirm and sys.stdin is not None and sys.stdin.isatty():
        typer.confirm(printable(f"Launch into {results.path}?"), default=True, abort=True)
    changed = store_plan(results, plan, options, stored, replacing=True)
    if not stored:  # so that no two workers read all data files
        digests_now(job.specs, options.data_dir, results.path)
    trained: dict[str, State] = {}
    if ids or changed or results.names("runs") or len(ended(results.path).parts) > 1:
        # a worker would take a broken run for ended
        results.start_anew(again | {i for i in ids if before[i] is State.BROKEN})
        trained = _trained(job, launcher)
    states = before | {i: now.state for i, now in results.statuses(ids).items()}
    if queued := sum(state is State.QUEUED for state in trained.values()):
        terminal().say(f"{counted(queued, 'run')} queued; `status --watch` follows them.")
        return Counter((states | trained).values())
    _report(job, trained, states)
    return Counter(states.values())


def _planned(
    sweep: Sweep, options: LaunchOptions, results: Directory
) -> tuple[Plan, LaunchOptions]:
    """The plan, which is printed, and the options, completed by the sweep's file."""
    plan = make_plan(sweep, options.data_dir)
    results.check(sweep.name, {"sweep": _shared_keys(plan)})
    show_plan(plan, terminal())
    if sentence := lost_here():
        terminal().say(sentence)
    if not plan.runs:
        cells = {f"{i.algorithm} on {i.dataset}: {i.reason}" for i in plan.impossible}
        raise UserError(f"sweep '{sweep.name}' has no possible run: {'; '.join(sorted(cells))}")
    if plan.rule is not None and plan.rule.reads_predictions and not options.keep_predictions:
        raise UserError(f"selection {plan.rule.name} reads predictions: add --keep-predictions")
    return plan, replace(
        options,
        plugins=tuple(sweep.plugins),
        observers=tuple(_usable(options.observers)),
        keep_weights=check_rules(options.keep_weights or sweep.keep_weights, plan.runs),
        run_timeout=sweep.run_timeout,
        resources=sweep.resources,
    )


def _usable(names: Iterable[str]) -> Iterator[str]:
    """The observers whose packages are installed; prints how to install the others."""
    from oodbench.train.observers import observers

    for name in names:
        package = observers.get(name, hint=PLUGIN_HINT).package
        # wandb leaves folders of its name, which Python takes for a package without a file
        if package and getattr(find_spec(package), "origin", None) is None:
            error = missing_package(f"the observer {name}", package, name)
            terminal().say(f"{error}; the runs go on without it.")
        else:
            yield name


def _continued(sweep: Sweep, stored: Mapping[str, Any], plugins: Sequence[str]) -> Sweep:
    """The sweep with all plug-ins, and with the stored plan's kind of draws unless the file sets one."""
    settings = stored.get("settings", {})
    kept = {
        key: settings["sweep"][key]
        for key in ("draws", "shared_quantiles")
        if key in settings.get("sweep", {}) and key not in sweep.model_fields_set
    }
    kept["plugins"] = [*dict.fromkeys([*settings.get("plugins", ()), *sweep.plugins, *plugins])]
    return sweep.model_copy(update=kept)


def _shared_keys(plan: Plan) -> dict[str, Any]:
    shared = plan.sweep.model_dump(mode="json", include=SHARED_KEYS)
    return shared | ({"hparams_from": dict(plan.chosen)} if plan.chosen else {})


def store_plan(
    results: Directory,
    plan: Plan,
    options: LaunchOptions,
    stored: Mapping[str, Any] | None = None,
    replacing: bool = False,
) -> bool:
    """Add a plan to a results directory unless it equals the `stored` plan; returns whether it was added.

    For `replacing` see `Directory.write_plan`. Raises UserError if the directory holds anything but earlier
    launches of this sweep.
    """
    sweep, data_dir = plan.sweep, options.data_dir
    launched = {
        "sweep": _shared_keys(plan),
        "selection": sweep.selection,
        "protocol": sweep.protocol,
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": list(options.plugins),
        "launcher": options.launcher,
    }
    is_new = True
    if stored:
        known = zip(*(stored["rows"][name] for name in ("id", *ROW_LABELS)), strict=True)
        same = [*known] == [*map(attrgetter("id", *ROW_LABELS), plan.rows)]
        is_new = not same or not launched.items() <= stored["settings"].items()
    if is_new:
        results.write_plan(sweep.name, launched, plan.rows, replacing=replacing)
    results.keep_findings(plan.findings)
    return is_new


_place = attrgetter(*PLAN_KEY)


def _with_stored(
    plan: Plan, results: Directory, stored: Mapping[str, Any], options: LaunchOptions
) -> tuple[Plan, dict[str, State], frozenset[str]]:
    """The plan with the stored runs that are kept, the runs' states, and the ids to train again.

    Prints which runs are stale; raises UserError for them unless `options.stale` says what to do.
    """
    for sentence in ended(results.path).wrong:
        terminal().say(f"{sentence}.")
    planned = {_place(spec): spec for spec in plan.rows}
    rows = stored.get("rows")
    known = [] if rows is None else specs_of(rows[~rows["id"].isin([*plan.runs])])
    _check_datasets(results, plan, [s for s in known if _place(s) not in planned])
    replaced = {s.id: s for s in known if _place(s) in planned}
    both = {**replaced, **plan.runs}
    statuses = results.statuses(both)
    here = digests_now(plan.runs, options.data_dir, results.path) if stored else {}
    found = stale_in(results, both, statuses, here)
    old = settled(found, options.stale)
    for reason in found:
        outcome = f"; {OUTCOME[options.stale]}" if reason.is_known else ""
        terminal().say(f"{reason.sentence}{outcome}.")
    if options.stale == KEEP:
        planned |= {_place(replaced[i]): replaced[i] for i in old & replaced.keys()}
        plan, old = replace(plan, rows=[planned[_place(spec)] for spec in plan.rows]), frozenset()
    return plan, {i: statuses[i].state for i in plan.runs}, old & plan.runs.keys()


def _check_datasets(results: Directory, plan: Plan, kept: Sequence[RunSpec]) -> None:
    """Raise UserError if runs that stay were trained on a dataset otherwise than the plan's runs."""
    now: dict[str, list[dict[str, Any]]] = {}
    for spec in plan.rows if kept else ():
        different = now.setdefault(spec.dataset_name, [])
        if not spec.ceiling and (values := _training(spec)) not in different:
            different.append(values)
    for spec in kept:
        others, of_average = now.get(spec.dataset_name), (spec.average or {}).get("name") == DIWA
        if not others or spec.ceiling or of_average:
            continue
        before = _training(spec)
        for key in dict.fromkeys([*before, *others[0]]):
            old, new = before.get(key), [each.get(key) for each in others]
            if old not in new:
                raise UserError(
                    f"{results.path} holds {spec.row} with {key} {short(old)}, "
                    f"and this launch has {short(new[0])}: use another directory, or give the dataset "
                    "another `label`"
                )


def _training(spec: RunSpec) -> dict[str, Any]:
    values: dict[str, Any] = {key: vars(spec)[key] for key in TRAINING}
    values |= {f"option {name}": value for name, value in values.pop("options").items()}
    stored: dict[str, Any] = json.loads(json.dumps(values))  # tuples are stored as lists
    return stored


def settled(found: Sequence[Stale], wish: str) -> frozenset[str]:
    """The ids of stale runs; raises UserError if there are any and `wish` is empty."""
    known = [reason for reason in found if reason.is_known]
    if known and not wish:
        raise UserError(
            f"{'; '.join(reason.sentence for reason in known)}: `--stale retrain` trains them again, "
            "`--stale keep` keeps them (in Python `stale='retrain'` and `stale='keep'`)"
        )
    return frozenset(i for reason in known for i in reason.ids)


def check_rules(rules: Sequence[str], runs: Mapping[str, RunSpec]) -> tuple[str, ...]:
    """The rules by which runs keep weights, each once; raises UserError for an impossible rule."""
    for rule in [find_rule(name, "keep_weights") for name in rules if name != LAST]:
        if not rule.judges_alone:
            raise UserError(
                f"weights cannot be kept by {rule.name}: it judges a run by others, which may end later"
            )
        if not rule.judged([*runs.values()]):
            raise UserError(f"weights cannot be kept by {rule.name}: it needs {rule.needs}")
    return tuple(dict.fromkeys(rules))


def _trained(job: Job, launcher: Launcher) -> dict[str, State]:
    """Have the runs trained. Ended runs move into the tables meanwhile, and at the end."""
    stopped = threading.Event()

    def now_and_then() -> None:
        while not stopped.wait(COMPACT_SECONDS):
            with suppress(OSError, UserError):  # such as a full disk, which may have room later
                compact(job.results, patient=False)

    thread = threading.Thread(target=now_and_then, name="compaction", daemon=True)
    thread.start()
    try:
        states: object = launcher.launch(job) if job.ids else {}
    except KeyboardInterrupt:
        terminal().say("Interrupted; the same launch resumes the runs.")
        raise
    finally:
        stopped.set()
        thread.join()
        try:
            compact(job.results)
        except (OSError, UserError) as error:
            terminal().say(f"Ended runs stay in their folders: {error}")
    if not isinstance(states, dict):
        who = f"the launcher {type(launcher).__name__}"
        raise wrong_result("launch", who, "the states of runs by their ids", states)
    return states


def _report(job: Job, trained: Mapping[str, State], states: Mapping[str, State]) -> None:
    console, counts = terminal(), Counter(states.values())
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    console.say(f"{summary} of {counted(len(job.specs), 'run')} in {job.results.path}")
    if elsewhere := sum(state is State.ELSEWHERE for state in trained.values()):
        console.say(f"Another launch is training {counted(elsewhere, 'run')}.")
    complete = {i: job.specs[i] for i, state in states.items() if state.complete}
    rules = job.options.keep_weights
    kept = job.results.kept_weights(complete) if rules else {}
    for rule in rules:
        judged = {*complete} if rule == LAST else find_rule(rule).judged([*complete.values()])
        if lacking := sum(rule not in {name for name, _ in kept.get(i, ())} for i in judged):
            console.say(
                f"Ended without the weights of {rule}, and not trained again: {counted(lacking, 'run')}. "
                "A launch into a new directory trains them and keeps the weights."
            )
    if job.options.table and complete:
        _print_leaderboard(job.results)
    if State.FAILED in counts or State.BROKEN in counts:
        console.say(
            f"`python -m oodbench.sweep status {job.results.path}` shows why runs failed; the same launch "
            "with --failed trains them again (in Python `failed=True`)."
        )


def _print_leaderboard(results: Directory) -> None:
    from oodbench.report.tables import print_sheet
    from oodbench.report.tables.leaderboard import leaderboard
    from oodbench.report.tables.sheet import sheet
    from oodbench.results.read import joined

    try:
        more = f"`python -m oodbench.report table {results.path} --notes` says more."
        print_sheet(sheet(leaderboard(joined([results.path]))), more=more)
    except UserError as error:  # the runs are trained even if this selection rule cannot judge them
        terminal().say(f"no table: {error}")


def is_complete(counts: Mapping[State, int]) -> bool:
    """Whether every run in the counts of `launch` has a result, is queued, or is trained elsewhere."""
    return all(state.complete or state in (State.QUEUED, State.RUNNING) for state in counts)


def launch_specs(
    name: str, specs: Mapping[str, RunSpec], ids: Sequence[str], options: LaunchOptions
) -> Counter[State]:
    """Train runs of any sweep, by id, without printing a leaderboard.

    The runs are added to the plan of the results directory, whose sweep is called `name`. Returns the
    number of `ids` by state. Raises as `launch` does.
    """
    load_plugins(options.plugins)
    launcher, results = launchers.get(options.launcher)(), Directory(options.out)
    launcher.warm_up()
    job = Job(name=name, results=results, specs=dict(specs), ids=tuple(ids), options=options)
    results.write_plan(name, {"plugins": list(options.plugins)}, [*job.specs.values()])
    _trained(job, launcher)
    return Counter(status.state for status in results.statuses(ids).values())
