"""The jobs that a sweep has submitted to Slurm, and their states in its queue.

OUT/jobs/<name>/submission.json   one array of jobs: which runs are in which
                *_log.out, .err   what the jobs print
OUT/jobs/lock                     held by the launch that submits
"""

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.results.directory import Results
from oodbench.results.run_spec import State
from oodbench.results.schemas import DamagedFile, Heartbeat, read_file
from oodbench.sweep.launchers import RunStatus, progress_note

DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between two attempts while the controller does not answer."""
BUSY = re.compile(
    r"unable to contact|connect failure|connection (refused|reset|timed out)|timed out|"
    r"temporarily unable|resource temporarily unavailable|try again|zero bytes|"
    r"backup controller|rate limit",
    re.IGNORECASE,
)
"""Words of errors of Slurm's commands after which a later attempt may succeed."""
ACTIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
    "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING", "SIGNALING", "STAGE_OUT",
}  # fmt: skip
"""The states of a job that has not ended yet."""
FORGIVEN = 60.0
"""Seconds that a submission has to appear in Slurm's queue."""
SILENT = 20.0
"""Seconds without a heartbeat after which a run whose job has ended is lost."""

Pack = tuple[str, ...]
"""The ids of the runs of one job."""


@dataclass(frozen=True)
class Submission:
    """One array of jobs. It is written before Slurm has it; its name is the name of its jobs."""

    name: str
    packs: tuple[Pack, ...]
    time: float
    """The time of the submission, in seconds since 1970."""
    job: str | None = None
    """Slurm's id of the array; None until Slurm has answered."""
    cancelled: bool = False

    def job_id(self, index: int) -> str | None:
        """Slurm's id of the job at an index of the array."""
        return f"{self.job}_{index}" if len(self.packs) > 1 else self.job

    def log(self, index: int, folder: Path) -> Path | None:
        """The log of the job at an index of the array, or None if it has none."""
        return max(folder.glob(f"{self.name}/{self.job_id(index)}_*.err"), default=None)


class Submissions:
    """The submissions in a results directory."""

    def __init__(self, results: Results) -> None:
        self.folder = results.path.absolute() / "jobs"

    def lock(self) -> FileLock:
        """The lock that a launch holds while it looks at what is queued and submits the rest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / "lock")

    def write(self, submission: Submission) -> None:
        """Write or rewrite a submission."""
        (self.folder / submission.name).mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(submission))
        write_whole(self.folder / submission.name / "submission.json", text)

    def __iter__(self) -> Iterator[Submission]:
        """All submissions, the oldest first.

        A damaged one is left out: its runs are judged by their own files alone.
        """
        readable = []
        for path in self.folder.glob("*/submission.json"):
            with contextlib.suppress(DamagedFile):
                readable.append(read_file(path, Submission))
        return iter(sorted((s for s in readable if s is not None), key=lambda s: s.time))

    def of_runs(self) -> dict[str, tuple[Submission, int]]:
        """The last submission of each run and the job's index in its array, unless cancelled."""
        return {
            run_id: (submission, index)
            for submission in self
            if not submission.cancelled
            for index, pack in enumerate(submission.packs)
            for run_id in pack
        }


class QueuedJob(NamedTuple):
    """A job as Slurm knows it."""

    id: str
    """The job's id, as `id` or `array_index`."""
    state: str
    reason: str
    node: str


Queue = dict[tuple[str, int], QueuedJob]
"""Jobs by their submission's name and their index in its array."""


def queue(submissions: Iterable[Submission], patient: bool = False) -> Queue:
    """Slurm's jobs of some submissions, those that ended lately too; raises UserError.

    Jobs of other results directories may have the same names.
    """
    known = {s.name: s.job for s in submissions}
    if not known:
        return {}
    lines = ask(
        "squeue", "--noheader", "--array", "--states=all", f"--name={','.join(known)}",
        "--format=%j|%i|%T|%N|%r", patient=patient,
    ).splitlines()  # fmt: skip
    jobs = {}
    for line in lines:
        name, job, state, node, reason = line.strip().split("|", 4)
        array, _, index = job.partition("_")
        if known[name] in (None, array):
            jobs[name, int(index or 0)] = QueuedJob(job, state, reason, node)
    return jobs


def status_of(
    results: Results,
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
    job = jobs.get((submission.name, index))
    if job is not None and job.state in ACTIVE:
        return RunStatus(*_active(job, beat), log)
    now = time.time()
    if job is None and submission.job is None and now - submission.time < FORGIVEN:
        return RunStatus(State.QUEUED, "being submitted", log)
    if state is State.RUNNING and beat is not None and now - beat.time < SILENT:
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


def cancel(submissions: Iterable[Submission]) -> int:
    """Cancel the jobs of some submissions; returns how many had not ended. Raises UserError."""
    jobs = queue(submissions, patient=True).values()
    active = [job.id for job in jobs if job.state in ACTIVE]
    arrays = sorted({job.partition("_")[0] for job in active})
    if arrays:
        ask("scancel", *arrays)
    return len(active)


def delays() -> Iterator[float]:
    """Yield the seconds to wait between attempts; raises UserError when there is none left."""
    yield from DELAYS
    raise UserError(f"Slurm's controller has not answered for {sum(DELAYS):.0f} s; try again later")


class NoAnswer(UserError):
    """One of Slurm's commands failed, or is not there."""


def ask(*command: str, patient: bool = True) -> str:
    """The output of one of Slurm's commands, which is called again, with back-off, while Slurm is busy.

    Raises NoAnswer with Slurm's own sentence, or if the command is not there.
    """
    if shutil.which(command[0]) is None:
        raise NoAnswer(
            f"there is no Slurm on this machine ('{command[0]}' is not on the PATH): "
            "launch where it is, or use --launcher local"
        )
    for delay in delays() if patient else iter([0.0]):
        result = subprocess.run(command, capture_output=True, text=True)
        message = " ".join(result.stderr.split())
        if result.returncode == 0:
            return result.stdout
        if not BUSY.search(message) or not patient:
            break
        time.sleep(delay)
    raise NoAnswer(f"{command[0]}: {message.removeprefix(f'{command[0]}: error: ')}")
