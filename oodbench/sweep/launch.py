"""The steps of a launch: plan, store the plan, find the runs left to train, train them, report."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from oodbench.arithmetic import lost_here
from oodbench.errors import UserError, wrong_result
from oodbench.registry import load_plugins
from oodbench.report.numbers import counted
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.file import Sweep
from oodbench.sweep.launchers import (
    Job,
    Launcher,
    LaunchOptions,
    launchers,
    layered_resources,
    states,
    status_on_disk,
)
from oodbench.sweep.plan import make_plan, show_plan
from oodbench.sweep.stale import KEEP, RETRAIN, reasons, replaced, settled, with_kept
from oodbench.sweep.stored_plan import continued, store_plan
from oodbench.sweep.weights import check_rules, lacking
from oodbench.terminal import Terminal, printable, terminal
from oodbench.train.digests import dataset_of, digests_now

__all__ = ["LaunchOptions", "is_complete", "launch", "launch_specs", "retry"]


def launch(sweep: Sweep, options: LaunchOptions, console: Terminal | None = None) -> Counter[State]:
    """Train the runs of a sweep that have not ended yet, and print its leaderboard.

    Returns how many runs of the sweep are in each state; it is empty after a dry run. The same
    launch again goes on where this one was interrupted. Raises UserError for what cannot be
    launched, and KeyboardInterrupt when it is interrupted.
    """
    console = console or terminal()
    results = Results(options.out)
    sweep = continued(sweep, results)
    plugins = tuple(dict.fromkeys([*sweep.plugins, *options.plugins]))
    launcher = _launcher(options.launcher, plugins)
    plan = make_plan(sweep, options.data_dir)
    show_plan(plan, console)
    if sentence := lost_here():
        console.say(sentence)
    if not plan.runs:
        cells = {f"{i.algorithm} on {i.dataset}: {i.reason}" for i in plan.impossible}
        raise UserError(f"sweep '{sweep.name}' has no possible run: {'; '.join(sorted(cells))}")
    rules = options.keep_weights or tuple(sweep.keep_weights)
    options = replace(
        options,
        plugins=plugins,
        keep_weights=check_rules(rules, plan.runs.values()) if rules else (),
        keep_checkpoints=sweep.keep_checkpoints,
        run_timeout=options.run_timeout or sweep.run_timeout,
        resources=layered_resources(
            (f"the resources of {sweep.name}", sweep.resources), ("the flags", options.resources)
        ),
    )
    job = Job(
        name=sweep.name,
        results=results,
        specs=plan.runs,
        ids=(),
        options=options,
    )
    is_first = not (results.path / "sweep.json").exists()
    job, again, dropped = _decided(job, console)
    if options.dry_run:
        launcher.preview(job, console)
        return Counter()
    launcher.check(job)
    if options.confirm and sys.stdin is not None and sys.stdin.isatty():
        typer.confirm(printable(f"Launch into {job.results.path}?"), default=True, abort=True)
    store_plan(
        job.results,
        sweep,
        job.specs,
        options,
        launcher=options.launcher,
        resources=options.resources,
        without=dropped,
        chosen=plan.chosen,
    )
    if is_first:  # so that no two workers read all data files
        digests_now(job.specs, options.data_dir, results.path)
    for run_id in again:
        results.run(run_id).start_anew()
    return _train(job, launcher, console)


def retry(
    results: Results, options: LaunchOptions, console: Terminal | None = None
) -> Counter[State]:
    """Train the failed and lost runs of a results directory again, from their last checkpoints.

    The data directory, the plug-ins and the kept predictions and weights are as at the last launch.
    Returns and raises as `launch`.
    """
    stored = results.plan()
    last = stored["settings"]
    plugins = tuple(last.get("plugins", ()))
    launcher = _launcher(options.launcher, plugins)
    statuses = states(results)
    data_dir = last.get("data_dir")
    options = replace(
        options,
        data_dir=Path(data_dir) if data_dir else None,
        plugins=plugins,
        keep_predictions=last.get("keep_predictions", False),
        keep_weights=tuple(last.get("keep_weights", ())),
        keep_checkpoints=last.get("keep_checkpoints", False),
        run_timeout=options.run_timeout or last.get("run_timeout"),
        resources=layered_resources(
            ("the last launch", last.get("resources", {})), ("the flags", options.resources)
        ),
    )
    console = console or terminal()
    specs = {i: RunSpec.from_json(s) for i, s in stored["runs"].items()}
    here = digests_now(specs, options.data_dir, results.path)
    again = settled(reasons(results, specs, statuses, here), options.stale, console)
    again = again if options.stale == RETRAIN else frozenset()
    for run_id in again:
        dataset_of(specs[run_id], options.data_dir)  # raises for data with another checksum
    job = Job(
        name=stored["name"],
        results=results,
        specs=specs,
        ids=tuple(i for i, s in statuses.items() if s.state.can_be_retried or i in again),
        options=options,
    )
    if options.dry_run:
        launcher.preview(job, console)
        return Counter()
    launcher.check(job)
    for run_id, status in statuses.items():
        if run_id in again:
            results.run(run_id).start_anew()
        elif status.state is State.BROKEN:  # a worker would take it for ended
            results.run(run_id).forget()
    return _train(job, launcher, console)


def launch_specs(
    name: str, specs: Mapping[str, RunSpec], ids: Sequence[str], options: LaunchOptions
) -> Counter[State]:
    """Train some of these runs, by their ids, whatever sweep they are of; print no leaderboard.

    They are added to the plan of the results directory, which is of the sweep `name`. Returns how many of
    `ids` are in each state. Raises as `launch` does.
    """
    launcher = _launcher(options.launcher, options.plugins)
    results = Results(options.out)
    job = Job(name=name, results=results, specs=dict(specs), ids=tuple(ids), options=options)
    results.write_plan(name, {"plugins": list(options.plugins)}, job.specs)
    _run(job, launcher, terminal())
    return Counter(results.run(i).state() for i in ids)


def is_complete(counts: Mapping[State, int]) -> bool:
    """Whether every run has a result or will get one elsewhere, by the counts of `launch`.

    The latter are queued on a cluster or trained by another launch.
    """
    under_way = (State.QUEUED, State.RUNNING)
    return all(state.complete or state in under_way for state in counts)


def _launcher(name: str, plugins: Sequence[str]) -> Launcher:
    """The launcher of that name, already warming up; raises UserError for an unknown name."""
    load_plugins(plugins)
    launcher = launchers.get(name)()
    launcher.warm_up()
    return launcher


def _decided(job: Job, console: Terminal) -> tuple[Job, frozenset[str], frozenset[str]]:
    """Decide which runs of a job are trained, with stale ones as the user wishes.

    Returns the job with the ids of these runs, the ids of those that are trained again, and the ids of
    stored runs that new ones replace. Raises UserError for stale runs before the user has decided.
    """
    results, options, specs = job.results, job.options, job.specs
    stored = {}
    if (results.path / "sweep.json").exists():
        stored = {i: RunSpec.from_json(s) for i, s in results.plan()["runs"].items()}
    before = replaced(specs, stored)
    statuses = {i: status_on_disk(results, i) for i in {**before, **specs}}
    here = digests_now(specs, options.data_dir, results.path) if stored else {}
    known = reasons(results, {**before, **specs}, statuses, here)
    old = settled(known, options.stale, console)
    again, dropped = old & specs.keys(), old & before.keys()
    if options.stale == KEEP:
        specs = with_kept(specs, {i: before[i] for i in dropped})
        again = dropped = frozenset()
    ids = tuple(i for i in specs if i in again or not statuses[i].state.final)
    return replace(job, specs=specs, ids=ids), again, dropped


def _train(job: Job, launcher: Launcher, console: Terminal) -> Counter[State]:
    """Train the runs `job.ids` and print the states of the sweep's runs."""
    ended = _run(job, launcher, console)
    counts = Counter(job.results.run(i).state() for i in job.specs)
    queued = sum(state is State.QUEUED for state in ended.values())
    if queued:
        console.say(f"{counted(queued, 'run')} queued; `status --watch` follows them.")
        counts = Counter(ended.get(i, job.results.run(i).state()) for i in job.specs)
    else:
        _report(job, ended, counts, console)
    return counts


def _run(job: Job, launcher: Launcher, console: Terminal) -> dict[str, State]:
    """Train the runs `job.ids`; returns how they ended."""
    try:
        ended: object = launcher.launch(job) if job.ids else {}
    except KeyboardInterrupt:
        console.say("Interrupted; the same launch goes on where it was.")
        raise
    if not isinstance(ended, dict):
        who = f"the launcher {type(launcher).__name__}"
        raise wrong_result("launch", who, "the states of runs by their ids", ended)
    return ended


def _report(
    job: Job,
    ended: Mapping[str, State],
    counts: Mapping[State, int],
    console: Terminal,
) -> None:
    """Print how the runs of a sweep ended and, if any has results and it is asked for, its leaderboard."""
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    console.say(f"{summary} of {counted(len(job.specs), 'run')} in {job.results.path}")
    elsewhere = sum(state is State.ELSEWHERE for state in ended.values())
    if elsewhere:
        console.say(f"Another launch is training {counted(elsewhere, 'run')}.")
    for rule, runs in lacking(job.results, job.specs, job.options.keep_weights).items():
        console.say(
            f"Ended without the weights of {rule}, and not trained again: {counted(runs, 'run')}."
        )
    if job.options.table and any(state.complete for state in counts):
        from oodbench.report.formats import print_sheet
        from oodbench.report.sheet import leaderboard_sheet
        from oodbench.results.join import joined

        try:
            more = f"`python -m oodbench.report table {job.results.path} --notes` says more."
            print_sheet(leaderboard_sheet(joined([job.results.path])), more=more)
        except UserError as error:  # the runs are done, whatever this selection rule lacks
            console.say(f"no table: {error}")
    if State.FAILED in counts or State.BROKEN in counts:
        command = "`python -m oodbench.sweep"
        console.say(
            f"{command} status {job.results.path}` shows why runs failed; {command} retry "
            f"{job.results.path}` trains them again."
        )
