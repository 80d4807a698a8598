"""Launches all runs of a sweep, or some of them by id.

A sweep goes through a launch in this order: `resolve` and `plan`, then what its results directory holds
(`stored`), then a launcher, then the leaderboard.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec

import typer

from oodbench.arithmetic import lost_here
from oodbench.errors import PLUGIN_HINT, UserError, missing_package, wrong_result
from oodbench.registry import load_plugins
from oodbench.results.compact import compact
from oodbench.results.directory import Directory
from oodbench.results.run_spec import RunSpec, State
from oodbench.selection import find_rule
from oodbench.sweep.file import Sweep
from oodbench.sweep.launchers import (
    Job,
    Launcher,
    LaunchOptions,
    launchers,
    statuses_on_disk,
)
from oodbench.sweep.plan import Plan, make_plan, show_plan
from oodbench.sweep.stored import (
    Decision,
    check_rules,
    continued,
    decide,
    lacking,
    shared_keys,
    store_plan,
    stored_plan,
)
from oodbench.terminal import Terminal, counted, printable, terminal
from oodbench.train.digests import digests_now

__all__ = ["LaunchOptions", "is_complete", "launch", "launch_specs"]
COMPACT_SECONDS = 30.0
"""Seconds between two compactions while runs are trained."""


def launch(sweep: Sweep, options: LaunchOptions, console: Terminal | None = None) -> Counter[State]:
    """Train the runs of a sweep that have not ended yet, and print its leaderboard.

    Returns the number of runs of the sweep by state, empty after a dry run. Repeating an interrupted
    launch resumes it. Raises UserError for what cannot be
    launched, and KeyboardInterrupt when it is interrupted.
    """
    console = console or terminal()
    results = Directory(options.out)
    stored = stored_plan(results)
    sweep = continued(sweep, stored)
    plugins = tuple(dict.fromkeys([*sweep.plugins, *options.plugins]))
    launcher = _launcher(options.launcher, plugins)
    plan = make_plan(sweep, options.data_dir)
    results.check(sweep.name, {"sweep": shared_keys(plan)})
    _check_predictions(sweep, options)
    show_plan(plan, console)
    if sentence := lost_here():
        console.say(sentence)
    if not plan.runs:
        cells = {f"{i.algorithm} on {i.dataset}: {i.reason}" for i in plan.impossible}
        raise UserError(f"sweep '{sweep.name}' has no possible run: {'; '.join(sorted(cells))}")
    options = _completed(options, plan, plugins)
    decision = decide(plan, results, stored, options, console)
    job = _job(decision, results, options)
    if options.dry_run:
        launcher.preview(job, console)
        return Counter()
    launcher.check(job)
    if options.confirm and sys.stdin is not None and sys.stdin.isatty():
        typer.confirm(printable(f"Launch into {results.path}?"), default=True, abort=True)
    store_plan(results, decision.plan, options, replacing=True)
    if not stored:  # so that no two workers read all data files
        digests_now(job.specs, options.data_dir, results.path)
    results.start_anew([i for i in job.ids if i in decision.again])
    for run_id in job.ids:
        if decision.states[run_id] is State.BROKEN:  # a worker would take it for ended
            results.run(run_id).forget()
    with compacting(results, console):
        ended = _trained(job, launcher, console)
    now = statuses_on_disk(results, job.ids)
    states = {**decision.states, **{i: status.state for i, status in now.items()}}
    if queued := sum(state is State.QUEUED for state in ended.values()):
        console.say(f"{counted(queued, 'run')} queued; `status --watch` follows them.")
        return Counter({**states, **ended}.values())
    _report(job, ended, states, console)
    return Counter(states.values())


def _check_predictions(sweep: Sweep, options: LaunchOptions) -> None:
    rule = None if sweep.selection is None else find_rule(sweep.selection)
    if rule is not None and rule.reads_predictions and not options.keep_predictions:
        raise UserError(f"selection {rule.name} reads predictions: add --keep-predictions")


def _launcher(name: str, plugins: Sequence[str]) -> Launcher:
    load_plugins(plugins)
    launcher = launchers.get(name)()
    launcher.warm_up()
    return launcher


def _completed(options: LaunchOptions, plan: Plan, plugins: tuple[str, ...]) -> LaunchOptions:
    sweep = plan.sweep
    rules = options.keep_weights or tuple(sweep.keep_weights)
    return replace(
        options,
        plugins=plugins,
        observers=tuple(_usable(options.observers)),
        keep_weights=check_rules(rules, plan.runs.values()) if rules else (),
        run_timeout=options.run_timeout or sweep.run_timeout,
        resources=sweep.resources,
    )


def _usable(names: Iterable[str]) -> Iterator[str]:
    """The observers whose packages are here; says how to get the others."""
    from oodbench.train.observers import observers

    for name in names:
        package = observers.get(name, hint=PLUGIN_HINT).package
        # wandb leaves folders of its name, which Python would take for a package without a file
        if package and getattr(find_spec(package), "origin", None) is None:
            error = missing_package(f"the observer {name}", package, name)
            terminal().say(f"{error}; the runs go on without it.")
        else:
            yield name


def _job(decision: Decision, results: Directory, options: LaunchOptions) -> Job:
    wanted = {
        i
        for i, s in decision.states.items()
        if i in decision.again or not s.final or (options.failed and not s.complete)
    }
    plan = decision.plan
    ids = tuple(i for i in plan.runs if i in wanted)
    return Job(name=plan.sweep.name, results=results, specs=plan.runs, ids=ids, options=options)


def _trained(job: Job, launcher: Launcher, console: Terminal) -> dict[str, State]:
    try:
        ended: object = launcher.launch(job) if job.ids else {}
    except KeyboardInterrupt:
        console.say("Interrupted; the same launch goes on where it was.")
        raise
    if not isinstance(ended, dict):
        who = f"the launcher {type(launcher).__name__}"
        raise wrong_result("launch", who, "the states of runs by their ids", ended)
    return ended


@contextmanager
def compacting(results: Directory, console: Terminal) -> Iterator[None]:
    """Move ended runs into the tables while runs are trained, and at the end."""
    stopped = threading.Event()

    def now_and_then() -> None:
        while not stopped.wait(COMPACT_SECONDS):
            with suppress(OSError, UserError):  # as of a full disk, which may have room again
                compact(results, patient=False)

    thread = threading.Thread(target=now_and_then, name="compaction", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        try:
            compact(results)
        except (OSError, UserError) as error:
            console.say(f"Ended runs stay in their folders: {error}")


def _report(
    job: Job, ended: Mapping[str, State], states: Mapping[str, State], console: Terminal
) -> None:
    counts = Counter(states.values())
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    console.say(f"{summary} of {counted(len(job.specs), 'run')} in {job.results.path}")
    elsewhere = sum(state is State.ELSEWHERE for state in ended.values())
    if elsewhere:
        console.say(f"Another launch is training {counted(elsewhere, 'run')}.")
    complete = {i: job.specs[i] for i, state in states.items() if state.complete}
    for rule, runs in lacking(job.results, complete, job.options.keep_weights).items():
        console.say(
            f"Ended without the weights of {rule}, and not trained again: {counted(runs, 'run')}. "
            "A launch into a new directory trains them and keeps the weights."
        )
    if job.options.table and complete:
        _print_leaderboard(job.results, console)
    if State.FAILED in counts or State.BROKEN in counts:
        console.say(
            f"`python -m oodbench.sweep status {job.results.path}` shows why runs failed; the same launch "
            "with --failed trains them again (in Python `failed=True`)."
        )


def _print_leaderboard(results: Directory, console: Terminal) -> None:
    from oodbench.report.tables import print_sheet
    from oodbench.report.tables.leaderboard import leaderboard
    from oodbench.report.tables.sheet import sheet
    from oodbench.results.read import joined

    try:
        more = f"`python -m oodbench.report table {results.path} --notes` says more."
        print_sheet(sheet(leaderboard(joined([results.path]))), more=more)
    except UserError as error:  # the runs are trained even if this selection rule cannot judge them
        console.say(f"no table: {error}")


def is_complete(counts: Mapping[State, int]) -> bool:
    """Whether every run has a result or will get one elsewhere, by the counts of `launch`.

    The latter are queued on a cluster or trained by another launch.
    """
    return all(state.complete or state in (State.QUEUED, State.RUNNING) for state in counts)


def launch_specs(
    name: str, specs: Mapping[str, RunSpec], ids: Sequence[str], options: LaunchOptions
) -> Counter[State]:
    """Train runs of any sweep, by id, without printing a leaderboard.

    They are added to the plan of the results directory of the sweep `name`. Returns the number of `ids`
    by state. Raises as `launch` does.
    """
    launcher = _launcher(options.launcher, options.plugins)
    results = Directory(options.out)
    job = Job(name=name, results=results, specs=dict(specs), ids=tuple(ids), options=options)
    results.write_plan(name, {"plugins": list(options.plugins)}, [*job.specs.values()])
    with compacting(results, terminal()):
        _trained(job, launcher, terminal())
    return Counter(status.state for status in statuses_on_disk(results, ids).values())
