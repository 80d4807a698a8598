"""The launcher `slurm`: runs packed into jobs, jobs into arrays, submitted through submitit.

What has to be done is read from the results directory whenever a job starts, also after Slurm has
requeued it; submitit's pickles only say which runs a job is about.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from pydantic import ConfigDict, Field

from oodbench.errors import UserError
from oodbench.registry import checkout
from oodbench.results.compact import compact
from oodbench.results.directory import Directory
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.launchers import Job, Launcher, Resources, RunStatus, register
from oodbench.sweep.launchers.local import train_in_pool, with_retries
from oodbench.sweep.launchers.slurm_queue import (
    ACTIVE,
    Pack,
    Submission,
    ask,
    check_slurm,
    queue,
    status_of,
    submissions,
)
from oodbench.sweep.launchers.worker import stop
from oodbench.terminal import Terminal, counted, terminal
from oodbench.train.settings import TrainSettings

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

    from oodbench.sweep.estimate import Forecast

JOB_MINUTES = 10
"""About how long a job of short runs takes, unless `runs_per_job` says how many share one."""
MAX_REQUEUES = 10_000
"""Time-outs after which a job is given up: more than any job has, as a run goes on where it was."""
OURS = {"job-name", "array", "output", "error", "open-mode", "signal", "chdir", "time", "wrap"}
"""Options of sbatch that the launcher sets itself."""
MAX_ARRAY_SIZE = 1001
"""Slurm's default for the most jobs of one array."""


class SlurmResources(Resources):
    """The resources of one Slurm job, and how runs are put into jobs."""

    model_config = ConfigDict(regex_engine="python-re")

    partition: str | None = None
    """The partition; the cluster's default if not given."""
    account: str | None = None
    qos: str | None = None
    gpus: str = Field(
        default="0", pattern=r"^([A-Za-z]\w*:)?\d+$", description="a number of GPUs or type:number"
    )
    """GPUs of a job."""
    cpus: int = Field(default=1, ge=1)
    """CPU cores of a job."""
    memory: str | None = None
    """Memory of a job, such as 8G."""
    time: str = Field(
        default="1:00:00",
        pattern=r"^(?=.*[1-9])(\d+-)?\d+(:\d+){0,2}$",
        description="minutes, H:M:S or D-H:M:S",
    )
    """Time limit of a job."""
    constraint: str | None = None
    """Features that the node must have."""
    parallel: int | None = Field(default=None, ge=1)
    """Jobs of an array that run at a time."""
    runs_per_job: int | None = Field(default=None, ge=1)
    """Runs that share a job; None is as many as take about ten minutes."""
    slurm: dict[str, Any] = Field(default={})
    """Any other option of sbatch, and `setup` and `signal_delay_s` of submitit."""

    @property
    def gpu_count(self) -> int:
        """The number of GPUs of a job."""
        return int(self.gpus.rpartition(":")[2])

    def at_a_time(self, threads: int) -> int:
        """Runs that a job trains at once: `runs_per_gpu` per GPU; without GPUs, one per `threads` cores."""
        return self.gpu_count * self.runs_per_gpu or max(1, self.cpus // threads)


def minutes(text: str) -> int:
    """The minutes, rounded up, of a time as Slurm spells it: `90`, `30:00`, `1:30:00`, `2-12:30:00`."""
    days, _, rest = text.strip().rpartition("-")
    numbers = [int(n) for n in rest.split(":")]
    if not days and len(numbers) < 3:  # minutes first
        numbers = [0, *numbers]
    hours, mins, seconds = [*numbers, 0, 0][:3]
    return int(days or 0) * 1440 + hours * 60 + mins + -(-seconds // 60)


@dataclass(frozen=True, kw_only=True)
class TrainRuns:
    """The work of a job: train its runs, as many at a time as it has room for."""

    job: Job
    """The sweep, its options and how many runs are trained at a time; its runs are on disk."""
    stop_seconds: float
    """The seconds that the runs have for their checkpoints when the job has to go."""

    def __call__(self, ids: Pack) -> dict[str, State]:
        """Train the runs that have not ended; returns their states."""
        results = self.job.results
        stored = results.specs()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ""
        job = replace(
            self.job,
            specs={i: stored[i] for i in ids},
            ids=tuple(i for i in ids if self._is_left(results.run(i).state())),
            gpus=tuple(visible.split(",")) if visible else (),
        )
        trained = with_retries(job, train_in_pool) if job.ids else {}
        compact(results, patient=False)  # another job of this array may be at it
        return trained

    def _is_left(self, state: State) -> bool:
        """A requeued job may have been about to train a failed run again."""
        return not state.final or (state is State.FAILED and self.job.options.retries > 0)

    def checkpoint(self, ids: Pack) -> "DelayedSubmission":
        """Stop the workers and return the job to queue again; submitit calls this when Slurm ends a job."""
        from submitit.helpers import DelayedSubmission

        stop(self.stop_seconds)
        return DelayedSubmission(self, ids)


@register("slurm")
class Slurm(Launcher):
    """Array jobs of a Slurm cluster."""

    Resources = SlurmResources

    def check(self, job: Job) -> None:
        """Raise UserError where there is no Slurm, or for options that no job can have."""
        check_slurm()
        Request(job)

    def launch(self, job: Job) -> dict[str, State]:
        """Submit the runs that are not queued yet and return at once, with `queued` for each of them.

        Raises UserError with Slurm's sentence if it refuses them.
        """
        request = Request(job)
        (request.out / "jobs").mkdir(parents=True, exist_ok=True)
        with FileLock(request.out / "jobs" / "lock"):
            before = self._states(job)
            arrays = request.arrays(before)
            for name, packs in arrays.items():
                request.submit(name, packs)
        new = [pack for packs in arrays.values() for pack in packs]
        if new:
            terminal().say(described(new, request.asked))
        return before | dict.fromkeys(chain.from_iterable(new), State.QUEUED)

    def preview(self, job: Job, console: Terminal) -> None:
        """Print the jobs that a launch would submit: the options of sbatch, and their commands."""
        request = Request(job)
        arrays = request.arrays(self._states(job))
        if arrays:
            console.say(described([p for packs in arrays.values() for p in packs], request.asked))
        options = {"time": request.minutes, **request.options}
        flags = [f"--{key}" if v is True else f"--{key}={v}" for key, v in options.items()]
        for name, packs in arrays.items():
            title = f"\n{request.out / 'jobs' / name}: {counted(len(packs), 'job')}"
            console.print("\n".join([title, *flags, *request.setup]), soft_wrap=True)

    def states(self, results: Directory, ids: Collection[str]) -> dict[str, RunStatus]:
        """The status of the runs that were submitted, by Slurm's queue and the disk.

        Slurm is asked before the disk is read: what is gone from the queue has ended on the disk.
        """
        known = submissions(results)
        if not known:
            return {}
        try:
            jobs, problem = queue(known), ""
        except UserError as error:
            jobs, problem = None, f"Slurm does not tell: {error}"
        runs = {
            run_id: (submission, index)
            for submission in known
            if not submission.cancelled
            for index, pack in enumerate(submission.packs)
            for run_id in pack
        }
        return {i: status_of(results, i, *runs[i], jobs, problem) for i in ids if i in runs}

    def cancel(self, results: Directory) -> int:
        """Cancel the sweep's jobs and no others; returns how many had not ended."""
        left = [s for s in submissions(results) if not s.cancelled]
        active = [array for (array, _), job in queue(left).items() if job.state in ACTIVE]
        if active:
            ask("scancel", *sorted(set(active)))
        for submission in left:
            replace(submission, cancelled=True).write(results)
        return len(active)

    def _states(self, job: Job) -> dict[str, State]:
        known = self.states(job.results, job.ids)
        return {i: known[i].state if i in known else job.results.run(i).state() for i in job.ids}


class Request:
    """What a launch asks Slurm for; raises UserError for options that no job can have."""

    def __init__(self, job: Job) -> None:
        asked = SlurmResources.of(job.options.resources)
        if job.options.devices not in ("auto", "cpu"):
            raise UserError(
                f"with --launcher slurm, --devices is auto or cpu, not '{job.options.devices}'"
            )
        device = "cuda:0" if job.options.devices == "auto" and asked.gpu_count else "cpu"
        self.out = job.results.path.absolute()
        self.asked = asked
        data_dir = job.options.data_dir
        self.job = replace(
            job,
            options=replace(job.options, data_dir=data_dir and data_dir.absolute()),
            workers=asked.at_a_time(job.options.threads),
            devices=(device,),
        )
        self.minutes = minutes(asked.time)
        given = {key.replace("_", "-"): value for key, value in asked.slurm.items()}
        for key in given.keys() & OURS:
            raise UserError(f"slurm: {key} is set by the launcher itself")
        self.delay = int(given.pop("signal-delay-s", min(120, 15 * self.minutes)))
        """Seconds between Slurm's signal and the end of a job's time."""
        setup = given.pop("setup", [])
        path = ":".join(shlex.quote(str(p)) for p in dict.fromkeys([checkout(), Path.cwd()]))
        ours = f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}"
        self.setup = [*([setup] if isinstance(setup, str) else setup), ours]
        """The user's commands, then one by which jobs import the project and what lies in this folder."""
        options = {
            "partition": asked.partition,
            "account": asked.account,
            "qos": asked.qos,
            "constraint": asked.constraint,
            "mem": asked.memory,
            "gpus-per-node": asked.gpus if asked.gpu_count else None,
            "cpus-per-task": asked.cpus,
            "requeue": True,
        }
        self.options = {key: value for key, value in options.items() if value is not None} | given

    def arrays(self, states: Mapping[str, State]) -> dict[str, tuple[Pack, ...]]:
        """Job arrays by name, each a tuple of packs (one pack of runs a job), for runs nobody trains."""
        left = [i for i, s in states.items() if s is State.PLANNED or s.can_be_retried]
        packs = packed({i: self.job.specs[i] for i in left}, self.asked, self.job.options)
        prefix = re.sub(r"[^\w.-]", "-", self.job.name) + time.strftime("-%m%d-%H%M%S")
        return {
            f"{prefix}-{i // MAX_ARRAY_SIZE}": tuple(packs[i : i + MAX_ARRAY_SIZE])
            for i in range(0, len(packs), MAX_ARRAY_SIZE)
        }

    def submit(self, name: str, packs: tuple[Pack, ...]) -> None:
        """Submit an array of jobs; raises UserError with Slurm's sentence if it is refused.

        Earlier failures of its runs are then forgotten, as a job leaves failed runs alone.
        """
        results = self.job.results
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # the error says the same
                job = self._submit(name, packs)
        except RuntimeError as error:  # submitit's errors are such
            shutil.rmtree(self.out / "jobs" / name, ignore_errors=True)
            raise UserError(f"sbatch: {' '.join(str(error).split())}") from error
        Submission(name, packs, time.time(), job).write(results)
        for run in map(results.run, chain.from_iterable(packs)):
            if run.failure() is not None:
                run.forget()

    def _submit(self, name: str, packs: tuple[Pack, ...]) -> str:
        from submitit import AutoExecutor

        executor = AutoExecutor(
            self.out / "jobs" / name,
            cluster="slurm",
            slurm_max_num_timeout=MAX_REQUEUES,
            # no code from the folder where the job starts
            slurm_python=f"{shlex.quote(sys.executable)} -P",
        )
        executor.update_parameters(
            name=name,
            timeout_min=self.minutes,
            slurm_signal_delay_s=self.delay,
            slurm_array_parallelism=self.asked.parallel or sys.maxsize,
            slurm_setup=self.setup,
            # srun inherits no cpus since Slurm 22.05, and no environment under SBATCH_EXPORT=NONE
            slurm_srun_args=["--export=ALL", f"--cpus-per-task={self.asked.cpus}"],
            slurm_additional_parameters=self.options,
        )
        work = TrainRuns(job=replace(self.job, specs={}, ids=()), stop_seconds=self.delay / 2)
        jobs = executor.map_array(work, packs)
        return str(jobs[0].job_id).partition("_")[0]


def packed(
    specs: Mapping[str, RunSpec],
    asked: SlurmResources,
    settings: TrainSettings,
    expected: "Forecast | None" = None,
) -> list[Pack]:
    """The ids of the runs of each job: `runs_per_job`, or as many as take about ten minutes.

    The times are measured here unless a forecast has them; a job gets no more than half of its time limit.
    """
    from oodbench.sweep.estimate import forecast

    ids, size = [*specs], asked.runs_per_job
    if size is not None or len(ids) < 2:
        return [tuple(ids[i : i + (size or 1)]) for i in range(0, len(ids), size or 1)]
    expected = expected or forecast([*specs.values()], settings)
    room = asked.at_a_time(settings.threads) * 60 * min(JOB_MINUTES, minutes(asked.time) / 2)
    packs: list[list[str]] = []
    left = 0.0
    for run_id, spec in specs.items():
        seconds = expected.seconds_of(spec, otherwise=room)
        if seconds > left:
            packs.append([])
            left = room
        packs[-1].append(run_id)
        left -= seconds
    return [tuple(pack) for pack in packs]


def described(packs: Sequence[Pack], asked: SlurmResources) -> str:
    """A sentence on how runs share jobs."""
    text = f"Slurm: {counted(sum(map(len, packs)), 'run')} in {counted(len(packs), 'job')}"
    if asked.runs_per_job is None and any(len(pack) > 1 for pack in packs):
        text += f": short runs share jobs of about {JOB_MINUTES} minutes, or runs_per_job of them"
    return f"{text}."
