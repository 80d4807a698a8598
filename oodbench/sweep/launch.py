"""The ways to have runs trained: all of a sweep, some by their specs, and one from Python.

A sweep goes through a launch in this order: `resolve` and `plan`, then what its results directory holds
(`stored`), then a launcher, then the leaderboard.
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from oodbench.arithmetic import lost_here
from oodbench.errors import MOST_THREADS, PLUGIN_HINT, UserError, whole_number, wrong_result
from oodbench.registry import load_plugins
from oodbench.results.compact import compact
from oodbench.results.directory import Results
from oodbench.results.read import read_results
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.tables import tidy
from oodbench.sweep.file import Sweep, validate
from oodbench.sweep.launchers import (
    Job,
    Launcher,
    LaunchOptions,
    launchers,
    statuses_on_disk,
)
from oodbench.sweep.plan import Plan, make_plan, show_plan
from oodbench.sweep.stored import (
    RETRAIN,
    Decision,
    check_rules,
    continued,
    decide,
    lacking,
    reasons,
    specs_in,
    store_plan,
    stored_plan,
)
from oodbench.terminal import Terminal, counted, printable, terminal
from oodbench.train.digests import digests_now

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LaunchOptions", "is_complete", "launch", "launch_specs", "run"]
CALLER = "oodbench.run"
COMPACT_SECONDS = 30.0
"""Seconds between two compactions while runs are trained."""


def launch(sweep: Sweep, options: LaunchOptions, console: Terminal | None = None) -> Counter[State]:
    """Train the runs of a sweep that have not ended yet, and print its leaderboard.

    Returns how many runs of the sweep are in each state; it is empty after a dry run. The same
    launch again goes on where this one was interrupted. Raises UserError for what cannot be
    launched, and KeyboardInterrupt when it is interrupted.
    """
    console = console or terminal()
    results = Results(options.out)
    stored = stored_plan(results)
    sweep = continued(sweep, stored)
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


def _launcher(name: str, plugins: Sequence[str]) -> Launcher:
    load_plugins(plugins)
    launcher = launchers.get(name)()
    launcher.warm_up()
    return launcher


def _completed(options: LaunchOptions, plan: Plan, plugins: tuple[str, ...]) -> LaunchOptions:
    from oodbench.train.observers import observers

    for name in options.observers:
        observers.get(name, hint=PLUGIN_HINT)
    sweep = plan.sweep
    rules = options.keep_weights or tuple(sweep.keep_weights)
    return replace(
        options,
        plugins=plugins,
        keep_weights=check_rules(rules, plan.runs.values()) if rules else (),
        run_timeout=options.run_timeout or sweep.run_timeout,
        resources=sweep.resources,
    )


def _job(decision: Decision, results: Results, options: LaunchOptions) -> Job:
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
def compacting(results: Results, console: Terminal) -> Iterator[None]:
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
            f"Ended without the weights of {rule}, and not trained again: {counted(runs, 'run')}."
        )
    if job.options.table and complete:
        _print_leaderboard(job.results, console)
    if State.FAILED in counts or State.BROKEN in counts:
        console.say(
            f"`python -m oodbench.sweep status {job.results.path}` shows why runs failed; the same launch "
            "with --failed trains them again."
        )


def _print_leaderboard(results: Results, console: Terminal) -> None:
    from oodbench.report.tables import print_sheet
    from oodbench.report.tables.sheet import leaderboard_sheet
    from oodbench.results.read import joined

    try:
        more = f"`python -m oodbench.report table {results.path} --notes` says more."
        print_sheet(leaderboard_sheet(joined([results.path])), more=more)
    except UserError as error:  # the runs are done, whatever this selection rule lacks
        console.say(f"no table: {error}")


def is_complete(counts: Mapping[State, int]) -> bool:
    """Whether every run has a result or will get one elsewhere, by the counts of `launch`.

    The latter are queued on a cluster or trained by another launch.
    """
    return all(state.complete or state in (State.QUEUED, State.RUNNING) for state in counts)


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
    results.write_plan(name, {"plugins": list(options.plugins)}, [*job.specs.values()])
    with compacting(results, terminal()):
        _trained(job, launcher, terminal())
    return Counter(status.state for status in statuses_on_disk(results, ids).values())


def run(
    dataset: str | Mapping[str, Any],
    algorithm: str | Mapping[str, Any] = "ERM",
    *,
    trial: int = 0,
    out: str | PathLike[str] | None = None,
    data_dir: str | PathLike[str] | None = None,
    device: str = "cpu",
    threads: int = 1,
    keep_weights: Sequence[str] = (),
    plugins: Sequence[str] = (),
    stale: str = "",
    **keys: Any,
) -> "pd.DataFrame":
    """Train one run in this process and return its records, as `oodbench.load` returns those of a sweep.

    `dataset` and `algorithm` are entries of a sweep file: a name, or a mapping with the key `name` and
    options, or `hparams`; `keys` are further keys of the file, such as `steps`, `evaluate_every`,
    `network` or `test_environments: [["test"]]`. The run is the one that such a sweep trains, with the
    same id and the same records. With `out`, a results directory, it goes on where it was interrupted
    there, is not trained again once it has ended, and `load_model` finds the weights that it keeps.
    If its code or data have changed since it was trained there, it is refused, unless `stale` is `retrain`
    or `keep`. Several runs may share the directory, as those of a sweep do, and be trained there at
    once. Without `out` nothing is left on the disk. The process's settings and random generators are
    afterwards as they were before.

    Raises UserError for what cannot be run, and RuntimeError with the traceback if the run fails.
    """
    from oodbench.train.execute import execute
    from oodbench.train.process import check_device, check_precision, kept_generators

    for name, entry in (("dataset", dataset), ("algorithm", algorithm)):
        if not isinstance(entry, str | Mapping):
            raise UserError(f"{CALLER}: {name} is a name, or a mapping with one, not {entry!r}")
    for name, several in (("keep_weights", keep_weights), ("plugins", plugins)):
        if isinstance(several, str):
            raise UserError(f"{CALLER}: {name} is a list, such as [{several!r}]")
    trial, threads = whole_number(trial, "trial"), whole_number(threads, "threads", 1, MOST_THREADS)
    if keep_weights and out is None:
        raise UserError(f"{CALLER}: weights are kept in a results directory, which `out` names")
    load_plugins(plugins)
    check_device(device)
    data = None if data_dir is None else Path(data_dir)
    with kept_generators(), tempfile.TemporaryDirectory() as scratch:
        plan, spec = _planned(dataset, algorithm, trial, data, keys)
        check_precision(spec.precision, device)
        results = Results(Path(scratch) if out is None else Path(out))
        options = LaunchOptions(
            out=results.path,
            data_dir=data,
            device=device,
            threads=threads,
            plugins=tuple(plugins),
            keep_weights=check_rules(keep_weights, [spec]),
            scratch=out is None,
        )
        known = {s.id for s in specs_in(stored_plan(results))}
        if spec.id not in known:  # whatever its sweep is called
            store_plan(results, plan, options)
        directory = results.run(spec.id)
        _check_stale(results, spec, data, stale)
        state, message = execute(spec, directory, options)
        if state is State.ELSEWHERE:
            raise UserError(f"another process trains the run in {directory.path}")
        if not state.complete:
            failure = directory.failure()
            trace = "" if failure is None else f"\n{failure.traceback}"
            raise RuntimeError(f"the run is {state}: {message}{trace}")
        return tidy(read_results(results, {spec.id: spec}))


def _check_stale(results: Results, spec: RunSpec, data_dir: Path | None, wish: str) -> None:
    specs, statuses = {spec.id: spec}, statuses_on_disk(results, [spec.id])
    if not statuses[spec.id].provenance:
        return
    known = reasons(results, specs, statuses, digests_now(specs, data_dir, results.path))
    sentences = [reason.sentence for reason in known if reason.is_known]
    if sentences and not wish:
        raise UserError(
            f"{CALLER}: {'; '.join(sentences)}: stale='retrain' trains it again, stale='keep' keeps it"
        )
    if sentences and wish == RETRAIN:
        results.start_anew([spec.id])


def _planned(
    dataset: str | Mapping[str, Any],
    algorithm: str | Mapping[str, Any],
    trial: int,
    data_dir: Path | None,
    keys: Mapping[str, Any],
) -> tuple[Plan, RunSpec]:
    entries = [each if isinstance(each, str) else dict(each) for each in (dataset, algorithm)]
    values = {"name": CALLER, "datasets": entries[:1], "algorithms": entries[1:]}
    plan = make_plan(validate({**values, "trials": [trial], **keys}, CALLER), data_dir)
    if plan.impossible and not plan.runs:
        raise UserError(f"{CALLER}: {plan.impossible[0].reason}")
    if len(plan.runs) != 1:
        raise UserError(f"{CALLER} trains one run, and these keys make {len(plan.runs)}")
    (spec,) = plan.runs.values()
    return plan, spec
