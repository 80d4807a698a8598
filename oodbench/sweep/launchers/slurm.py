"""The launcher `slurm`: runs packed into jobs, jobs into arrays, submitted through submitit.

What has to be done is read from the results directory whenever a job starts, also after Slurm has
requeued it; submitit's pickles only say which runs a job is about.
"""

import contextlib
import hashlib
import io
import math
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import Timeout
from submitit.core.utils import DelayedSubmission, FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor, _get_default_parameters, _make_sbatch_string

from oodbench.errors import UserError
from oodbench.registry import checkout
from oodbench.results.directory import Results
from oodbench.results.provenance import commit
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.launchers import slurm_commands as cluster
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.launchers.local import local, stop
from oodbench.sweep.launchers.slurm_resources import Resources, minutes
from oodbench.sweep.launchers.slurm_submissions import Submission, Submissions
from oodbench.sweep.launchers.snapshot import fingerprint, freeze
from oodbench.sweep.launchers.states import states
from oodbench.train.settings import TrainSettings

MAX_REQUEUES = 10_000
"""Time-outs after which a job is given up: more than any job has, as a run goes on where it was."""
OURS = {"job_name", "array", "output", "error", "open_mode", "signal", "chdir", "folder", "command"}
"""Options of sbatch that the launcher needs for itself."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What a job does: train its runs, as many at a time as it has room for."""

    sweep: str
    results: Path
    ids: tuple[str, ...]
    settings: TrainSettings
    workers: int
    stop_seconds: float
    """The seconds that the runs have for their checkpoints when the job has to go."""
    code: str
    """The fingerprint of the code that was submitted."""
    commit: str | None

    def __call__(self) -> dict[str, State]:
        """Train what has not ended; returns the states."""
        results = Results(self.results)
        same = fingerprint(self.settings.plugins) == self.code
        ids = tuple(i for i in self.ids if not results.run(i).state().final)
        if not same:
            return {i: self._refuse(results, i) for i in ids}
        stored = results.plan()["runs"]
        specs = {i: RunSpec.from_json(stored[i]) for i in self.ids}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ""
        gpus = tuple(visible.split(",")) if visible else ()
        job = Job(
            name=self.sweep,
            results=results,
            specs=specs,
            ids=ids,
            settings=self.settings,
            workers=self.workers,
            devices=(self.settings.device,),
            gpus=gpus,
        )
        return local(job)

    def checkpoint(self) -> DelayedSubmission:
        """What submitit calls when Slurm wants the job to go: the same again, later."""
        stop(self.stop_seconds)
        return DelayedSubmission(self)

    def _refuse(self, results: Results, run_id: str) -> State:
        with contextlib.suppress(Timeout), results.run(run_id).lock():
            results.run(run_id).fail(
                f"the code has changed since this run was submitted (commit {self.commit} then, "
                f"{commit()} now): `retry` submits it with today's, --snapshot keeps a copy",
                "",
            )
        return results.run(run_id).state()


@dataclass(frozen=True)
class Array:
    """An array of jobs before its submission."""

    name: str
    folder: Path
    packs: tuple[Pack, ...]
    parameters: dict[str, Any]
    """The job's options by submitit's names."""

    @property
    def text(self) -> str:
        """The file that sbatch is given."""
        return str(
            _make_sbatch_string(
                command=f"{_python()} -u -m submitit.core._submit {shlex.quote(str(self.folder))}",
                folder=self.folder,
                map_count=len(self.packs) if len(self.packs) > 1 else None,
                **self.parameters,
            )
        )

    def submit(self) -> str:
        """Submit once; returns Slurm's id of the array."""
        executor = SlurmExecutor(self.folder, max_num_timeout=MAX_REQUEUES, python=_python())
        executor.update_parameters(**self.parameters)
        with executor.batch(allow_implicit_submissions=True):
            jobs = [executor.submit(pack) for pack in self.packs]
        return str(jobs[0].job_id).partition("_")[0]


def slurm(job: Job) -> dict[str, State]:
    """Submit the runs that are not queued yet and return at once, with `queued` for each of them.

    Nothing is submitted if the cluster could never run it. Raises UserError.
    """
    cluster.check(job.resources)
    submissions = Submissions(job.results)
    with submissions.lock():
        before = {i: s.state for i, s in states(job.results, job.ids).items()}
        ids = [i for i in job.ids if before[i] is State.PLANNED or before[i].can_be_retried]
        arrays = _arrays(job, ids, cluster.max_array_size())
        if job.snapshot and arrays:
            freeze(job.results.path.absolute() / "code", job.settings.plugins)
        for array in arrays:
            with _forgotten(job.results, [i for pack in array.packs for i in pack.ids]):
                _submit(array, submissions)
    return before | dict.fromkeys(ids, State.QUEUED)


@contextlib.contextmanager
def _forgotten(results: Results, ids: Sequence[str]) -> Iterator[None]:
    """Forget how the runs failed, as a job leaves failed ones alone, unless the block raises."""
    failures = {i: failure for i in ids if (failure := results.run(i).failure()) is not None}
    for run_id in failures:
        results.run(run_id).forget()
    try:
        yield
    except BaseException:
        for run_id, failure in failures.items():
            results.run(run_id).fail(failure.error, failure.traceback)
        raise


def device_of_runs(wanted: str, asked: Resources) -> str:
    """`auto` or `cpu` as the device of a run in a job, where it sees one GPU or none."""
    if wanted not in ("auto", "cpu"):
        raise UserError(f"with --launcher slurm, --devices is auto or cpu, not '{wanted}'")
    return "cuda:0" if wanted == "auto" and asked.gpu_count else "cpu"


def planned_arrays(job: Job) -> list[Array]:
    """The arrays that a launch would submit. Where Slurm is, raises UserError if it would refuse them."""
    if shutil.which("sbatch") is None:
        ids = [i for i in job.ids if not job.results.run(i).state().final]
        return _arrays(job, ids, 1001)
    cluster.check(job.resources)
    now = states(job.results, job.ids)
    ids = [i for i in job.ids if now[i].state in (State.PLANNED, State.LOST)]
    return _arrays(job, ids, cluster.max_array_size())


def _arrays(job: Job, ids: Sequence[str], array_size: int) -> list[Array]:
    """The runs packed into jobs and these into arrays; raises UserError."""
    if not ids:
        return []
    resources = job.resources
    size = resources.runs_per_job
    if resources.max_jobs is not None:
        queued = cluster.queued_by_user() if shutil.which("sbatch") else 0
        free = resources.max_jobs - queued
        if free < 1:
            raise UserError(
                f"you have {queued} jobs queued and max_jobs is "
                f"{resources.max_jobs}: wait, cancel some or raise it"
            )
        size = max(size, math.ceil(len(ids) / free))
    out = job.results.path.absolute()
    if "%" in str(out):
        raise UserError(f"{out}: Slurm's log files cannot lie in a folder with a % in its name")
    code, now = fingerprint(job.settings.plugins), commit()
    packs = [
        Pack(
            sweep=job.name,
            results=out,
            ids=tuple(ids[i : i + size]),
            settings=_settings(job),
            workers=resources.at_a_time(job.settings.threads),
            stop_seconds=_delay(job) / 2,
            code=code,
            commit=now,
        )
        for i in range(0, len(ids), size)
    ]
    earlier = len(list(Submissions(job.results)))
    sweep = re.sub(r"[^\w.-]", "-", job.name)
    arrays: list[Array] = []
    for i in range(0, len(packs), array_size):
        members = tuple(packs[i : i + array_size])
        key = f"{out} {earlier + len(arrays)} {[p.ids for p in members]}"
        name = f"{sweep}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        arrays.append(Array(name, out / "jobs" / name, members, _parameters(job, name)))
    return arrays


def _submit(array: Array, submissions: Submissions) -> None:
    """Submit an array, again while Slurm is busy; on disk before it is in the queue."""
    ids = tuple(pack.ids for pack in array.packs)
    submission = Submission(array.name, ids, time.time(), commit())
    submissions.write(submission)
    try:
        for delay in cluster.delays():
            try:
                with contextlib.redirect_stderr(io.StringIO()):  # the error says the same
                    submission = replace(submission, job=array.submit())
                break
            except (FailedJobError, FailedSubmissionError) as error:
                message = " ".join(str(error).split())
                if not cluster.busy(message):
                    raise UserError(f"sbatch: {message}") from error
            time.sleep(delay)
            cluster.cancel([array.name])  # it may have been accepted without our hearing of it
    except BaseException:
        shutil.rmtree(array.folder)
        raise
    submissions.write(submission)


def _settings(job: Job) -> TrainSettings:
    data = job.settings.data_dir
    return replace(job.settings, data_dir=data and data.absolute(), device=job.devices[0])


def _delay(job: Job) -> int:
    """Seconds between Slurm's signal and the end of a job's time."""
    limit = minutes(job.resources.time) or 1
    return int(job.resources.slurm.get("signal_delay_s", min(120, math.ceil(15 * limit))))


def _python() -> str:
    return f"{shlex.quote(sys.executable)} -P"  # no code from the folder where the job starts


def _parameters(job: Job, name: str) -> dict[str, Any]:
    """submitit's parameters of a job."""
    r = job.resources
    code = checkout()
    if job.snapshot:
        code = job.results.path.absolute() / "code" / fingerprint(job.settings.plugins)
    path = ":".join(shlex.quote(str(p)) for p in dict.fromkeys([code, Path.cwd()]))
    ours = [f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}"]
    known = _get_default_parameters()
    passed = {key.replace("-", "_"): value for key, value in r.slurm.items()}
    for key in passed.keys() & OURS:
        raise UserError(f"slurm: {key} is set by the launcher itself")
    setup = passed.pop("setup", [])
    extra = {"requeue": True} | {k: v for k, v in passed.items() if k not in known}
    asked = {
        "partition": r.partition,
        "account": r.account,
        "qos": r.qos,
        "constraint": r.constraint,
        "mem": r.memory,
        "gpus_per_node": r.gpus if r.gpu_count else None,
    }
    return {
        "job_name": name,
        "time": math.ceil(minutes(r.time) or 1),
        "cpus_per_task": r.cpus,
        "array_parallelism": r.parallel or sys.maxsize,
        "signal_delay_s": _delay(job),
        "srun_args": [f"--cpus-per-task={r.cpus}"],  # since Slurm 22.05 srun does not inherit it
        **{key: value for key, value in asked.items() if value is not None},
        **{key: value for key, value in passed.items() if key in known},
        "setup": [*([setup] if isinstance(setup, str) else setup), *ours],
        "additional_parameters": extra,
    }
