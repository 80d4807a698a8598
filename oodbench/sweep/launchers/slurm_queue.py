"""The jobs that a sweep has submitted to Slurm, and their states in its queue.

OUT/jobs/<name>/submission.json   one array of jobs: which runs are in which
                *_log.out, .err   what the jobs print
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.results.directory import Directory
from oodbench.results.run_spec import State
from oodbench.results.schemas import DamagedFile, Heartbeat, read_file
from oodbench.sweep.launchers import RunStatus, progress_note

ACTIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
    "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING", "SIGNALING", "STAGE_OUT",
}  # fmt: skip
"""The states of a job that has not ended yet."""
SILENT = 20.0
"""Seconds without a heartbeat after which a run whose job has ended is lost."""

Pack = tuple[str, ...]
"""The ids of the runs of one job."""


@dataclass(frozen=True)
class Submission:
    """One array of jobs that Slurm has accepted."""

    name: str
    """The name of its jobs, and of its folder in OUT/jobs."""
    packs: tuple[Pack, ...]
    time: float
    """The time of the submission, in seconds since 1970."""
    job: str
    """Slurm's id of the array."""
    cancelled: bool = False

    def job_id(self, index: int) -> str:
        """Slurm's id of the job at an index of the array."""
        return f"{self.job}_{index}" if len(self.packs) > 1 else self.job

    def log(self, index: int, folder: Path) -> Path | None:
        """The log of the job at an index of the array, or None if it has none."""
        return max(folder.glob(f"{self.name}/{self.job_id(index)}_*.err"), default=None)

    def write(self, results: Directory) -> None:
        """Write the submission into its folder, over an earlier state of it."""
        path = results.path / "jobs" / self.name / "submission.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(self)))


def submissions(results: Directory) -> list[Submission]:
    """The submissions of a results directory, the oldest first.

    A damaged one is left out: its runs are judged by their own files alone.
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
"""Jobs by Slurm's id of their array and their index in it."""


def queue(known: Iterable[Submission]) -> Queue:
    """The jobs that Slurm still knows of, by their names; raises UserError."""
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
        if ids[name] == array:  # another user's jobs may have the same names
            jobs[array, int(index or 0)] = QueuedJob(job, state, reason, node)
    return jobs


def status_of(
    results: Directory,
    run_id: str,
    submission: Submission,
    index: int,
    jobs: Queue | None,
    problem: str,
) -> RunStatus:
    """The status of a run that was submitted; `jobs` is None if Slurm has not answered."""
    run = results.run(run_id)
    state, note = run.state_and_reason()
    log = submission.log(index, results.path / "jobs")
    if state.final:
        return RunStatus(state, note, log)
    beat = run.heartbeat()
    if jobs is None:
        waits = state is State.PLANNED
        return RunStatus(*(State.QUEUED, problem) if waits else (state, progress_note(beat)), log)
    job = jobs.get((submission.job, index))
    if job is not None and job.state in ACTIVE:
        return RunStatus(*_active(job, beat), log)
    if state is State.RUNNING and beat is not None and time.time() - beat.time < SILENT:
        return RunStatus(state, progress_note(beat), log)
    note = f"job {submission.job_id(index)} "
    note += "is gone" if job is None else f"{job.state} on {job.node or '?'}"
    if log is None or not log.stat().st_size:
        note += ", without a word in its log: can the node see the results directory, has it room?"
    return RunStatus(State.LOST, note, log)


def _active(job: QueuedJob, beat: Heartbeat | None) -> tuple[State, str]:
    if job.state == "PENDING":
        return State.QUEUED, f"job {job.id}: {job.reason}"
    begins = job.state in ("REQUEUED", "CONFIGURING")
    if beat is None or begins or beat.job not in (None, job.id):
        return State.QUEUED, f"waits in job {job.id} on {job.node}"
    return State.RUNNING, progress_note(beat)


def check_slurm(command: str = "sbatch") -> None:
    """Raise UserError if this machine does not have one of Slurm's commands."""
    if shutil.which(command) is None:
        raise UserError(
            f"there is no Slurm on this machine ('{command}' is not on the PATH): "
            "launch where it is, or use --launcher local"
        )


def ask(*command: str) -> str:
    """The output of one of Slurm's commands; raises UserError with Slurm's own sentence."""
    check_slurm(command[0])
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        message = " ".join(result.stderr.split())
        raise UserError(f"{command[0]}: {message.removeprefix(f'{command[0]}: error: ')}")
    return result.stdout
