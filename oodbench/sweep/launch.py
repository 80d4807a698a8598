"""The steps of a launch: plan, store the plan, find the runs left to train, train them, report."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import typer

from oodbench.arithmetic import lost_here
from oodbench.errors import PLUGIN_HINT, UserError, wrong_result
from oodbench.registry import load_plugins
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.file import Sweep
from oodbench.sweep.launchers import (
    Job,
    Launcher,
    LaunchOptions,
    launchers,
    layered_resources,
    status_on_disk,
)
from oodbench.sweep.plan import Plan, make_plan, show_plan
from oodbench.sweep.stale import KEEP, reasons, replaced, settled, with_kept
from oodbench.sweep.stored_plan import continued, store_plan
from oodbench.sweep.weights import check_rules, lacking
from oodbench.terminal import Terminal, counted, printable, terminal
from oodbench.train.digests import digests_now

__all__ = ["LaunchOptions", "is_complete", "launch", "launch_specs"]


@dataclass(frozen=True)
class _Found:
    """What a launch finds in its results directory."""

    states: dict[str, State]
    """The state of each run."""
    again: frozenset[str]
    """The ids of stale runs that are trained again."""
    dropped: frozenset[str]
    """The ids of stored runs that new ones replace."""


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
    options = _completed(options, plan, plugins)
    is_first = not (results.path / "sweep.json").exists()
    job = Job(name=sweep.name, results=results, specs=plan.runs, ids=(), options=options)
    job, found = _decided(job, console)
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
        without=found.dropped,
        chosen=plan.chosen,
    )
    if is_first:  # so that no two workers read all data files
        digests_now(job.specs, options.data_dir, results.path)
    for run_id in job.ids:
        if run_id in found.again:
            results.run(run_id).start_anew()
        elif found.states[run_id] is State.BROKEN:  # a worker would take it for ended
            results.run(run_id).forget()
    return _train(job, found.states, launcher, console)


def _completed(options: LaunchOptions, plan: Plan, plugins: tuple[str, ...]) -> LaunchOptions:
    """Return the options of a launch with what the sweep file sets; raises UserError for what is wrong."""
    from oodbench.train.observers import observers

    for name in options.observers:
        observers.get(name, hint=PLUGIN_HINT)
    sweep = plan.sweep
    rules = options.keep_weights or tuple(sweep.keep_weights)
    return replace(
        options,
        plugins=plugins,
        keep_weights=check_rules(rules, plan.runs.values()) if rules else (),
        keep_checkpoints=sweep.keep_checkpoints,
        run_timeout=options.run_timeout or sweep.run_timeout,
        resources=layered_resources(
            (f"the resources of {sweep.name}", sweep.resources), ("the flags", options.resources)
        ),
    )


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


def _decided(job: Job, console: Terminal) -> tuple[Job, _Found]:
    """Return the job with the ids of the runs to train, stale ones as the user wishes, and what was found.

    Raises UserError for stale runs before the user has decided.
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
    states = {i: statuses[i].state for i in specs}
    wanted = {i for i, s in states.items() if not s.final or (options.failed and not s.complete)}
    ids = tuple(i for i in specs if i in again | wanted)
    return replace(job, specs=specs, ids=ids), _Found(states, again, dropped)


def _train(
    job: Job, before: Mapping[str, State], launcher: Launcher, console: Terminal
) -> Counter[State]:
    """Train the runs `job.ids`, print the states of the sweep's runs and return how many are in each.

    Of the other runs the states are as `before`.
    """
    ended = _run(job, launcher, console)
    states = {**before, **{i: job.results.run(i).state() for i in job.ids}}
    queued = sum(state is State.QUEUED for state in ended.values())
    if queued:
        console.say(f"{counted(queued, 'run')} queued; `status --watch` follows them.")
        return Counter({**states, **ended}.values())
    _report(job, ended, states, console)
    return Counter(states.values())


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
    states: Mapping[str, State],
    console: Terminal,
) -> None:
    """Print how the runs of a sweep ended and, if any has results and it is asked for, its leaderboard."""
    counts = Counter(states.values())
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    console.say(f"{summary} of {counted(len(job.specs), 'run')} in {job.results.path}")
    elsewhere = sum(state is State.ELSEWHERE for state in ended.values())
    if elsewhere:
        console.say(f"Another launch is training {counted(elsewhere, 'run')}.")
    complete = {i: job.specs[i] for i, state in states.items() if state.complete}
    for rule, runs in lacking(job.results, complete, job.options.keep_weights).items():
        console.say(
            f"Ended without the weights of {rule}, and not trained again: {counted(runs, 'run')}."
        )
    if job.options.table and complete:
        from oodbench.report.tables import print_sheet
        from oodbench.report.tables.sheet import leaderboard_sheet
        from oodbench.results.load import joined

        try:
            more = f"`python -m oodbench.report table {job.results.path} --notes` says more."
            print_sheet(leaderboard_sheet(joined([job.results.path])), more=more)
        except UserError as error:  # the runs are done, whatever this selection rule lacks
            console.say(f"no table: {error}")
    if State.FAILED in counts or State.BROKEN in counts:
        console.say(
            f"`python -m oodbench.sweep status {job.results.path}` shows why runs failed; the same launch "
            "with --failed trains them again."
        )
