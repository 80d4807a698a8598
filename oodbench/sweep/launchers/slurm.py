"""The launcher `slurm`: runs packed into jobs, jobs into arrays, submitted through submitit.

A job reads from the results directory what is left to do, whenever it starts, also after Slurm has requeued
it. submitit's pickles only say which runs a job has.

OUT/jobs/<name>/submission.json   an array of jobs, and the runs of each
                *_log.out, .err   the jobs' output
"""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock
from pydantic import ConfigDict, Field

from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.registry import checkout
from oodbench.results.directory import Directory, compact
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import RunSpec, RunStatus, State
from oodbench.results.schemas import DamagedFile, read_file
from oodbench.sweep.launchers import Job, Launcher, Resources, register
from oodbench.sweep.launchers.local import train_in_pool, with_retries
from oodbench.sweep.launchers.worker import stop
from oodbench.terminal import Terminal, counted, terminal
from oodbench.train.settings import TrainSettings

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

    from oodbench.sweep.estimate import Forecast

JOB_MINUTES = 10
"""About how long a job of short runs takes, unless `runs_per_job` sets the number of its runs."""
MAX_REQUEUES = 10_000
"""Time-outs after which a job is given up: more than any job has, as runs are resumed."""
OURS = {"job-name", "array", "output", "error", "open-mode", "signal", "chdir", "time", "wrap"}
"""The options of sbatch that the launcher sets."""
MAX_ARRAY_SIZE = 1001
"""The most jobs of one array, Slurm's default."""
ACTIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
    "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING", "SIGNALING", "STAGE_OUT",
}  # fmt: skip
"""The states of jobs that have not ended."""
SILENT = 20.0
"""Seconds without a heartbeat after which a run whose job has ended is lost."""

Pack = tuple[str, ...]
"""The ids of the runs of one job."""


class SlurmResources(Resources):
    """The resources of one Slurm job, and how runs are put into jobs."""

    model_config = ConfigDict(regex_engine="python-re")

    partition: str | None = None
    """The partition; None: the cluster's default."""
    account: str | None = None
    qos: str | None = None
    gpus: str = Field(
        default="0", pattern=r"^([A-Za-z]\w*:)?\d+$", description="a number of GPUs or type:number"
    )
    """GPUs of a job."""
    cpus: int = Field(default=1, ge=1)
    """CPU cores of a job."""
    memory: str | None = Field(
        default=None, pattern=r"^\d+([KMGTkmgt][Bb]?)?$", description="a number with K, M, G or T"
    )
    """Memory of a job; a number alone is of megabytes."""
    time: str = Field(
        default="1:00:00",
        pattern=r"^(?=.*[1-9])(\d+-)?\d+(:\d+){0,2}$",
        description="minutes, H:M:S or D-H:M:S",
    )
    """Time limit of a job."""
    constraint: str | None = None
    """Features of the node."""
    parallel: int | None = Field(default=None, ge=1)
    """Jobs of an array that run at a time."""
    runs_per_job: int | None = Field(default=None, ge=1)
    """Runs that share a job; None: as many as take about ten minutes."""
    slurm: dict[str, Any] = Field(default={})
    """Any other option of sbatch, and `setup` and `signal_delay_s` of submitit."""

    @property
    def gpu_count(self) -> int:
        """The number of GPUs of a job."""
        return int(self.gpus.rpartition(":")[2])

    def at_a_time(self, threads: int) -> int:
        """Runs that a job trains at once: `runs_per_gpu` per GPU; without GPUs one per `threads` cores."""
        return self.gpu_count * self.runs_per_gpu or max(1, self.cpus // threads)


def minutes(text: str) -> int:
    """The minutes, rounded up, of a time in Slurm's notation: `90`, `30:00`, `1:30:00`, `2-12:30:00`."""
    days, _, rest = text.strip().rpartition("-")
    numbers = [int(n) for n in rest.split(":")]
    if not days and len(numbers) < 3:  # minutes first
        numbers = [0, *numbers]
    hours, mins, seconds = [*numbers, 0, 0][:3]
    return int(days or 0) * 1440 + hours * 60 + mins + -(-seconds // 60)


@dataclass(frozen=True, kw_only=True)
class TrainRuns:
    """The work of a job, called with the ids of its runs."""

    job: Job
    """The sweep, its options and how many runs are trained at a time, without specs."""
    stop_seconds: float
    """Seconds for the runs' checkpoints when Slurm ends the job."""

    def __call__(self, ids: Pack) -> dict[str, State]:
        """Train those runs that have not ended; returns their states."""
        results = self.job.results
        stored = results.specs()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ""
        states = {i: results.run(i).state() for i in ids}
        # a requeued job may have been about to train a failed run again
        again = State.FAILED if self.job.options.retries else None
        job = replace(
            self.job,
            specs={i: stored[i] for i in ids},
            ids=tuple(i for i, s in states.items() if not s.final or s is again),
            gpus=tuple(visible.split(",")) if visible else (),
        )
        trained = with_retries(job, train_in_pool) if job.ids else {}
        compact(results, patient=False)  # another job of this array may be at it
        return trained

    def checkpoint(self, ids: Pack) -> "DelayedSubmission":
        """Stop the workers and return the job to requeue; submitit calls this when Slurm ends a job."""
        from submitit.helpers import DelayedSubmission

        stop(self.stop_seconds)
        return DelayedSubmission(self, ids)


@register("slurm")
class Slurm(Launcher):
    """Submits array jobs to a Slurm cluster."""

    Resources = SlurmResources

    def check(self, job: Job) -> None:
        """Raise UserError without Slurm on this machine, or for options that no job can have."""
        ask("sbatch", "--version")
        Request(job)

    def launch(self, job: Job) -> dict[str, State]:
        """Submit the runs that are not queued yet, and return at once with their state `queued`.

        Raises UserError with Slurm's message if Slurm refuses the jobs.
        """
        request = Request(job)
        request.jobs.mkdir(parents=True, exist_ok=True)
        with FileLock(request.jobs / "lock"):
            before = self._states(job)
            arrays = request.arrays(before)
            for name, packs in arrays.items():
                request.submit(name, packs)
        new = [pack for packs in arrays.values() for pack in packs]
        if new:
            terminal().say(described(new, request.asked))
        return before | dict.fromkeys(chain.from_iterable(new), State.QUEUED)

    def preview(self, job: Job, console: Terminal) -> None:
        """Print the jobs that a launch would submit, with options of sbatch and the setup commands."""
        request = Request(job)
        arrays = request.arrays(self._states(job))
        if arrays:
            console.say(described([p for packs in arrays.values() for p in packs], request.asked))
        options = {"time": minutes(request.asked.time), **request.options}
        flags = [f"--{key}" if v is True else f"--{key}={v}" for key, v in options.items()]
        for name, packs in arrays.items():
            title = f"\n{request.jobs / name}: {counted(len(packs), 'job')}"
            most = min(len(packs), request.asked.parallel or len(packs))
            array = [f"--array=0-{len(packs) - 1}%{most}"] * (len(packs) > 1)
            console.print("\n".join([title, *array, *flags, *request.setup]), soft_wrap=True)

    def states(self, results: Directory, ids: Collection[str]) -> dict[str, RunStatus]:
        """The status of the runs that were submitted, by Slurm's queue and the disk."""
        known = submissions(results)
        jobs: Queue | str
        try:  # before the disk is read: what has left the queue has then ended on the disk
            jobs = queue(known)
        except UserError as error:
            jobs = f"Slurm does not answer: {error}"
        runs = {
            run_id: (submission, index)
            for submission in known
            for index, pack in enumerate(submission.packs)
            for run_id in pack
        }
        statuses = {}
        for run_id in (i for i in ids if i in runs):
            submission, index = runs[run_id]
            folder = submission.file(results).parent
            log = max(folder.glob(f"{submission.job_id(index)}_*.err"), default=None)
            state, note = _state_of(results.run(run_id), submission, index, log, jobs)
            statuses[run_id] = RunStatus(state, note, log)
        return statuses

    def cancel(self, results: Directory) -> int:
        """Cancel this sweep's jobs only; returns how many had not ended."""
        known = submissions(results)
        active = [array for (array, _), job in queue(known).items() if job.state in ACTIVE]
        if active:
            ask("scancel", *sorted(set(active)))
        for submission in known:
            submission.file(results).unlink(missing_ok=True)
        return len(active)

    def _states(self, job: Job) -> dict[str, State]:
        known = self.states(job.results, job.ids)
        return {i: known[i].state if i in known else job.results.run(i).state() for i in job.ids}


class Request:
    """The jobs that a launch requests; raises UserError for options that no job can have."""

    def __init__(self, job: Job) -> None:
        self.asked = asked = SlurmResources.of(job.options.resources)
        if (devices := job.options.devices) not in ("auto", "cpu"):
            raise UserError(f"with --launcher slurm, --devices is auto or cpu, not '{devices}'")
        device = "cuda:0" if devices == "auto" and asked.gpu_count else "cpu"
        workers = asked.at_a_time(job.options.threads)
        self.job = replace(job, workers=workers, devices=(device,))
        self.jobs = job.results.path.absolute() / "jobs"
        """The folder of the submissions."""
        given = {key.replace("_", "-"): value for key, value in asked.slurm.items()}
        for key in given.keys() & OURS:
            raise UserError(f"slurm: {key} is set by the launcher")
        self.delay = int(given.pop("signal-delay-s", min(120, 15 * minutes(asked.time))))
        """Seconds between Slurm's signal and the end of a job's time."""
        setup = given.pop("setup", [])
        path = ":".join(shlex.quote(str(p)) for p in dict.fromkeys([checkout(), Path.cwd()]))
        ours = f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}"
        self.setup = [*([setup] if isinstance(setup, str) else setup), ours]
        """The user's commands, then one by which jobs import the project and modules of this folder."""
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
        """Job arrays by name, as packs of runs, one for each job, of the runs that no process trains."""
        left = [i for i, s in states.items() if s is State.PLANNED or s.can_be_retried]
        packs = packed({i: self.job.specs[i] for i in left}, self.asked, self.job.options)
        prefix = re.sub(r"[^\w.-]", "-", self.job.name) + time.strftime("-%m%d-%H%M%S")
        return {
            f"{prefix}-{i // MAX_ARRAY_SIZE}": tuple(packs[i : i + MAX_ARRAY_SIZE])
            for i in range(0, len(packs), MAX_ARRAY_SIZE)
        }

    def submit(self, name: str, packs: tuple[Pack, ...]) -> None:
        """Submit an array of jobs; raises UserError with Slurm's message if Slurm refuses it.

        Earlier failures of the runs are then removed, as jobs do not train failed runs.
        """
        results = self.job.results
        try:
            job = self._submit(name, packs)
        except RuntimeError as error:  # submitit's errors derive from it
            shutil.rmtree(self.jobs / name, ignore_errors=True)
            raise _refused("sbatch", str(error)) from error
        submission = Submission(name, packs, time.time(), job)
        write_whole(submission.file(results), json.dumps(asdict(submission)))
        for run in map(results.run, chain.from_iterable(packs)):
            if run.failure() is not None:
                run.forget()

    def _submit(self, name: str, packs: tuple[Pack, ...]) -> str:
        from submitit import AutoExecutor

        executor = AutoExecutor(
            self.jobs / name,
            cluster="slurm",
            slurm_max_num_timeout=MAX_REQUEUES,
            # -P: import nothing from the folder where the job starts
            slurm_python=f"{shlex.quote(sys.executable)} -P",
        )
        executor.update_parameters(
            name=name,
            timeout_min=minutes(self.asked.time),
            slurm_signal_delay_s=self.delay,
            slurm_array_parallelism=self.asked.parallel or sys.maxsize,
            slurm_setup=self.setup,
            # srun does not inherit cpus since Slurm 22.05, nor the environment under SBATCH_EXPORT=NONE
            slurm_srun_args=["--export=ALL", f"--cpus-per-task={self.asked.cpus}"],
            slurm_additional_parameters=self.options,
        )
        work = TrainRuns(job=replace(self.job, specs={}, ids=()), stop_seconds=self.delay / 2)
        with redirect_stderr(io.StringIO()):  # the error says the same
            first, *_ = executor.map_array(work, packs)
        return str(first.job_id).partition("_")[0]


def packed(
    specs: Mapping[str, RunSpec],
    asked: SlurmResources,
    settings: TrainSettings,
    expected: "Forecast | None" = None,
) -> list[Pack]:
    """The ids of the runs of each job: `runs_per_job`, or as many as take about ten minutes.

    Times are measured here unless `expected` is given. The runs of a job take at most half of its time
    limit.
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
    """A sentence on the numbers of runs and jobs."""
    text = f"Slurm: {counted(sum(map(len, packs)), 'run')} in {counted(len(packs), 'job')}"
    if asked.runs_per_job is None and any(len(pack) > 1 for pack in packs):
        text += f": short runs share jobs of about {JOB_MINUTES} minutes, or runs_per_job of them"
    return f"{text}."


@dataclass(frozen=True)
class Submission:
    """An array of jobs that Slurm has accepted."""

    name: str
    """The name of the jobs, and of their folder in OUT/jobs."""
    packs: tuple[Pack, ...]
    time: float
    """The time of submission, in seconds since 1970."""
    job: str
    """Slurm's id of the array."""

    def job_id(self, index: int) -> str:
        """Slurm's id of the job at an index of the array."""
        return f"{self.job}_{index}" if len(self.packs) > 1 else self.job

    def file(self, results: Directory) -> Path:
        """The file in which the submission is stored until it is cancelled."""
        return results.path / "jobs" / self.name / "submission.json"


def submissions(results: Directory) -> list[Submission]:
    """The submissions of a results directory, oldest first.

    A damaged submission is left out: the status of its runs then comes from the disk alone.
    """
    found = []
    for path in results.path.glob("jobs/*/submission.json"):
        with suppress(DamagedFile):
            found.append(read_file(path, Submission))
    return sorted((s for s in found if s is not None), key=lambda s: s.time)


class QueuedJob(NamedTuple):
    """A job in Slurm's queue."""

    id: str
    state: str
    reason: str
    node: str


Queue = dict[tuple[str, int], QueuedJob]
"""Jobs by Slurm's id of the array and the index in the array."""


def queue(known: Iterable[Submission]) -> Queue:
    """The jobs of submissions that Slurm still knows; raises UserError if Slurm does not answer."""
    ids = {submission.name: submission.job for submission in known}
    if not ids:
        return {}
    lines = ask(
        "squeue", "--noheader", "--array", "--states=all", f"--name={','.join(ids)}",
        "--format=%j|%i|%T|%N|%r",
    ).splitlines()  # fmt: skip
    jobs = {}
    for line in lines:
        name, job, state, node, reason = line.strip().split("|", 4)
        array, _, index = job.partition("_")
        if ids[name] == array:  # other users' jobs may have the same names
            jobs[array, int(index or 0)] = QueuedJob(job, state, reason, node)
    return jobs


def _state_of(
    run: RunDirectory, submission: Submission, index: int, log: Path | None, jobs: Queue | str
) -> tuple[State, str]:
    """The state of a submitted run, with a note; `jobs` is a sentence if Slurm has not answered."""
    state, note = run.state_and_reason()
    if state.final:
        return state, note
    beat = run.heartbeat()
    where = "" if beat is None else beat.note
    if isinstance(jobs, str):
        return (State.QUEUED, jobs) if state is State.PLANNED else (state, where)
    job = jobs.get((submission.job, index))
    if job is not None and job.state in ACTIVE:
        if job.state == "PENDING":
            return State.QUEUED, f"job {job.id}: {job.reason}"
        begins = job.state in ("REQUEUED", "CONFIGURING")
        if beat is None or begins or beat.job not in (None, job.id):
            return State.QUEUED, f"waits in job {job.id} on {job.node}"
        return State.RUNNING, where
    if state is State.RUNNING and beat is not None and time.time() - beat.time < SILENT:
        return state, where
    note = f"job {submission.job_id(index)} "
    note += "is gone" if job is None else f"{job.state} on {job.node or '?'}"
    if log is None or not log.stat().st_size:
        note += (
            ", with an empty log: can the node see the results directory, and has the disk room?"
        )
    return State.LOST, note


def ask(*command: str) -> str:
    """The output of a Slurm command; raises UserError with Slurm's message, or without Slurm here."""
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except (FileNotFoundError, PermissionError) as error:  # a folder on the PATH may be closed
        raise UserError(
            f"there is no Slurm on this machine ('{command[0]}' is not on the PATH): "
            "launch where it is, or use --launcher local"
        ) from error
    if result.returncode:
        raise _refused(command[0], result.stderr)
    return result.stdout


def _refused(command: str, said: str) -> UserError:
    message = " ".join(said.split()).removeprefix(f"{command}: error: ")
    if re.search("resolve_ctls|fetch_config|nknown host|contact slurm controller", message):
        message += " (no controller is reached: is this a login node of the cluster?)"
    return UserError(f"{command}: {message}")
