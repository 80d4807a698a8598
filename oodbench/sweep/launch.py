"""The way of a launch: plan, store the plan, choose what is left, train it, say how it ended."""

import itertools
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer

from oodbench.errors import UserError, unknown
from oodbench.registry import load_plugins
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.dry_run import show_jobs
from oodbench.sweep.file import Sweep
from oodbench.sweep.launchers.device_memory import check_memory
from oodbench.sweep.launchers.devices import available_devices, gpus_of
from oodbench.sweep.launchers.in_process import debug
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.launchers.local import local, warm_up
from oodbench.sweep.launchers.slurm import device_of_runs, slurm
from oodbench.sweep.launchers.slurm_resources import resources
from oodbench.sweep.launchers.states import states
from oodbench.sweep.plan import make_plan
from oodbench.sweep.status import show_plan
from oodbench.sweep.stored_plan import continued, store_plan
from oodbench.sweep.weights import check_rules, lacking
from oodbench.terminal import Terminal, printable, terminal
from oodbench.train.settings import TrainSettings, large_bundles

LAUNCHERS: dict[str, Callable[[Job], dict[str, State]]] = {
    "local": local,
    "debug": debug,
    "slurm": slurm,
}
"""The launchers by the names that users give them."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How the runs of a sweep are launched. Nothing of it changes a run's id."""

    out: Path | None = None
    """The results directory; `results/NAME` if it is None."""
    launcher: str = "local"
    """A name in `LAUNCHERS`."""
    workers: int | None = None
    """Processes at a time; None is one per core or, on GPUs, `runs_per_gpu` of the resources a device."""
    devices: str = "auto"
    """`auto`, `cpu` or a list such as `cuda:0,cuda:1`."""
    threads: int = 1
    """CPU threads of a run."""
    data_dir: Path | None = None
    """Where datasets that need files find them."""
    plugins: tuple[str, ...] = ()
    """Modules that every process imports first, besides those that the sweep names."""
    resources: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Values over the sweep's own `resources`, for the launcher `slurm`."""
    dry_run: bool = False
    """Whether Slurm's jobs are only shown."""
    snapshot: bool = False
    """Whether Slurm's jobs run a frozen copy of the code."""
    keep_predictions: bool = False
    """Whether every example's logits are kept at the evaluations."""
    keep_weights: Sequence[str] | None = None
    """The selection rules whose weights are kept, and `last`; None: as the sweep says."""
    loader_workers: int | None = None
    """Threads of a run that read stored data; None is its share of the cores."""
    vectorize: int | None = None
    """Most runs that are trained as one program; None is as many as pay."""
    run_timeout: float | None = None
    """Seconds after which a run that has not ended counts as failed; None is as the sweep says."""
    confirm: bool = False
    """Whether to ask before anything is written, if a person can answer."""
    table: bool = True
    """Whether the leaderboard is printed at the end."""


def launch(sweep: Sweep, options: LaunchOptions, console: Terminal | None = None) -> Counter[State]:
    """Train the runs of a sweep that have not ended yet, and print its leaderboard.

    Returns how many runs of the sweep are in each state; it is empty after a dry run. The same
    launch again goes on where this one was interrupted. Raises UserError for what cannot be
    launched, and KeyboardInterrupt when it is interrupted.
    """
    console = console or terminal()
    _start_early(options.launcher)
    results = Results(options.out or Path("results") / sweep.name)
    sweep = continued(sweep, results)
    plugins = tuple(dict.fromkeys([*sweep.plugins, *options.plugins]))
    load_plugins(plugins)
    plan = make_plan(sweep, options.data_dir)
    asked = resources(
        (f"the resources of {sweep.name}", sweep.resources), ("the flags", options.resources)
    )
    show_plan(plan, console)
    if not plan.runs:
        reasons = {f"{i.algorithm} on {i.dataset}: {i.reason}" for i in plan.impossible}
        raise UserError(f"sweep '{sweep.name}' has no possible run: {'; '.join(sorted(reasons))}")
    wanted = sweep.keep_weights if options.keep_weights is None else options.keep_weights
    rules = check_rules(wanted, plan.runs.values()) if wanted else ()
    job = Job(
        name=sweep.name,
        results=results,
        specs=plan.runs,
        ids=(),
        settings=TrainSettings(
            data_dir=options.data_dir,
            threads=options.threads,
            plugins=plugins,
            keep_predictions=options.keep_predictions,
            keep_weights=rules,
            loader_workers=options.loader_workers,
            vectorize=options.vectorize,
            run_timeout=options.run_timeout or sweep.run_timeout,
        ),
        resources=asked,
        snapshot=options.snapshot,
    )
    if options.dry_run:
        show_jobs(job, options.launcher, options.devices, console)
        return Counter()
    if options.launcher != "slurm":  # a cluster's devices are known where its jobs run
        _check_precision(job, available_devices(options.devices))
    store_plan(
        job.results,
        sweep,
        job.specs,
        job.settings,
        launcher=options.launcher,
        resources=job.resources.model_dump(exclude_defaults=True),
    )
    if options.confirm and sys.stdin is not None and sys.stdin.isatty():
        typer.confirm(printable(f"Launch into {job.results.path}?"), default=True, abort=True)
    ids = tuple(i for i in job.specs if not job.results.run(i).state().final)
    return _train(replace(job, ids=ids), options, console)


def retry(
    results: Results, options: LaunchOptions, console: Terminal | None = None
) -> Counter[State]:
    """Train the failed and lost runs of a results directory again, from their last checkpoints.

    The data directory, the plug-ins and what is kept (predictions, weights) are as at the last launch.
    Returns and raises as `launch`.
    """
    _start_early(options.launcher)
    stored = results.plan()
    last = stored["settings"]
    plugins = tuple(last.get("plugins", ()))
    load_plugins(plugins)
    now = states(results)
    data_dir = last.get("data_dir")
    job = Job(
        name=stored["name"],
        results=results,
        specs={i: RunSpec.from_json(s) for i, s in stored["runs"].items()},
        ids=tuple(i for i, s in now.items() if s.state.can_be_retried),
        settings=TrainSettings(
            data_dir=Path(data_dir) if data_dir else None,
            threads=options.threads,
            plugins=plugins,
            keep_predictions=last.get("keep_predictions", False),
            keep_weights=tuple(last.get("keep_weights", ())),
            loader_workers=options.loader_workers,
            vectorize=options.vectorize,
            run_timeout=options.run_timeout or last.get("run_timeout"),
        ),
        resources=resources(
            ("the last launch", last.get("resources", {})), ("the flags", options.resources)
        ),
        snapshot=options.snapshot,
    )
    for run_id, found in now.items():
        if found.state is State.BROKEN:  # whoever trains it would take it for ended
            results.run(run_id).forget()
    return _train(job, options, console or terminal())


def launch_specs(
    name: str, specs: Mapping[str, RunSpec], ids: Sequence[str], options: LaunchOptions
) -> Counter[State]:
    """Train some of these runs, by their ids, whatever sweep they are of; print no leaderboard.

    The results directory holds a plan of all of them under `name`. Returns how many of `ids` are in
    each state. Raises as `launch` does.
    """
    _start_early(options.launcher)
    load_plugins(options.plugins)
    job = Job(
        name=name,
        results=Results(options.out or Path("results") / name),
        specs=dict(specs),
        ids=tuple(ids),
        settings=TrainSettings(
            data_dir=options.data_dir,
            threads=options.threads,
            plugins=options.plugins,
            vectorize=options.vectorize,
        ),
    )
    job.results.write_plan(name, {"plugins": list(options.plugins)}, job.specs)
    _run(job, options, terminal())
    return Counter(job.results.run(i).state() for i in ids)


def is_complete(counts: Mapping[State, int]) -> bool:
    """Whether each of the runs that `launch` has counted has a result, or will have one without us.

    The latter are queued on a cluster or trained by another launch.
    """
    under_way = (State.QUEUED, State.RUNNING)
    return all(state.complete or state in under_way for state in counts)


def _start_early(launcher: str) -> None:
    """Check a launcher's name, and have it start with what takes it longest."""
    if launcher not in LAUNCHERS:
        raise unknown("launcher", launcher, LAUNCHERS)
    if launcher == "local":
        warm_up()


def _train(job: Job, options: LaunchOptions, console: Terminal) -> Counter[State]:
    """Train the runs `job.ids` and print how the sweep stands."""
    ended = _run(job, options, console)
    counts = Counter(job.results.run(i).state() for i in job.specs)
    queued = sum(state is State.QUEUED for state in ended.values())
    if queued:
        console.say(f"{queued} runs queued; `status --watch` follows them.")
        counts = Counter(ended.get(i, job.results.run(i).state()) for i in job.specs)
    else:
        _report(job, ended, counts, console, options.table)
    return counts


def _run(job: Job, options: LaunchOptions, console: Terminal) -> dict[str, State]:
    """Train the runs `job.ids`; returns how they ended."""
    at_hand = job.resources.runs_per_job if options.launcher == "slurm" else math.inf
    together = large_bundles(job.specs.values(), at_hand)
    job = replace(job, settings=replace(job.settings, large_bundles=together))
    if options.launcher == "slurm":
        job = replace(job, devices=(device_of_runs(options.devices, job.resources),))
    else:
        job = _placed(job, options)
        check_memory(job)
    try:
        return LAUNCHERS[options.launcher](job) if job.ids else {}
    except KeyboardInterrupt:
        console.say("Interrupted; the same launch goes on where it was.")
        raise


def _placed(job: Job, options: LaunchOptions) -> Job:
    """The job with the devices of this machine and the number of its processes.

    On GPUs alone, `runs_per_gpu` processes of the launcher `local` share each, and see no other.
    """
    devices = available_devices(options.devices)
    if devices == ("cpu",):
        return replace(job, devices=devices, workers=options.workers or os.cpu_count() or 1)
    workers = options.workers or len(devices) * job.resources.runs_per_gpu
    gpus = gpus_of(devices) if options.launcher == "local" else ()
    return replace(job, devices=("cuda:0",) if gpus else devices, gpus=gpus, workers=workers)


def _check_precision(job: Job, devices: Sequence[str]) -> None:
    """Raise UserError if a device lacks the precision of a run; others than float32 load torch here."""
    wanted = {spec.precision for spec in job.specs.values()} - {"float32"}
    if wanted:
        from oodbench.train.process import check_precision

        for precision, device in itertools.product(sorted(wanted), devices):
            check_precision(precision, device)


def _report(
    job: Job,
    ended: Mapping[str, State],
    counts: Mapping[State, int],
    console: Terminal,
    table: bool,
) -> None:
    """Print how the runs of a sweep ended and, if any has results and it is asked for, its leaderboard."""
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    console.say(f"{summary} of {len(job.specs)} runs in {job.results.path}")
    elsewhere = sum(state is State.ELSEWHERE for state in ended.values())
    if elsewhere:
        console.say(f"{elsewhere} runs are being trained by another launch.")
    for rule, runs in lacking(job.results, job.specs, job.settings.keep_weights).items():
        console.say(
            f"{runs} runs have ended without the weights of {rule}, and are not trained again."
        )
    if table and any(state.complete for state in counts):
        from oodbench.report.printing import print_table
        from oodbench.results.join import joined

        try:
            print_table(joined([job.results.path]))
            console.say("Other selection rules: `python -m oodbench.report table --help`.")
        except UserError as error:  # the runs are done, whatever this selection rule lacks
            console.say(f"no table: {error}")
    if State.FAILED in counts or State.BROKEN in counts:
        command = "`python -m oodbench.sweep"
        console.say(
            f"{command} status {job.results.path}` shows why runs failed; {command} retry "
            f"{job.results.path}` trains them again."
        )
