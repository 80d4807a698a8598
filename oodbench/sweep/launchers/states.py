"""The state of every run: what the disk says, joined with what Slurm says. Imports no torch.

The disk decides what has ended. Of the rest Slurm knows which are queued and why, and which can no
longer be running, because their job is gone.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.run_spec import State
from oodbench.results.schemas import Heartbeat
from oodbench.sweep.launchers import slurm_commands as cluster
from oodbench.sweep.launchers.slurm_commands import QueuedJob
from oodbench.sweep.launchers.slurm_submissions import Submission, Submissions

FORGIVEN = 60.0
"""Seconds that a submission has to appear in Slurm's queue."""
SILENT = 20.0
"""Seconds without a heartbeat after which a run whose job has ended is lost."""


@dataclass(frozen=True)
class RunStatus:
    """A run's state and what there is to say about it."""

    state: State
    note: str = ""
    log: Path | None = None
    """What the run's last job has printed, if it had one."""


def slurm_answers(results: Results) -> tuple[dict[tuple[str, int], QueuedJob] | None, str]:
    """The jobs of a sweep by (submission, index), and why Slurm does not tell, if it does not."""
    submissions = {s.name: s for s in Submissions(results)}
    try:
        found = cluster.queue(list(submissions))
    except UserError as error:
        return None, str(error)
    jobs = {}
    for (name, index), job in found.items():
        expected = submissions[name].job
        if expected is None or job.id.partition("_")[0] == expected:
            jobs[name, index] = job
    return jobs, ""


def states(results: Results, ids: Iterable[str] | None = None) -> dict[str, RunStatus]:
    """The state of each run, of all planned ones if none are given."""
    jobs, _ = slurm_answers(results)  # before the disk: what is gone here has ended there
    submitted = Submissions(results).of_runs()
    wanted = results.plan()["runs"] if ids is None else ids
    return {i: _state(results, i, submitted.get(i), jobs) for i in wanted}


def _state(
    results: Results,
    run_id: str,
    submitted: tuple[Submission, int] | None,
    jobs: dict[tuple[str, int], QueuedJob] | None,
) -> RunStatus:
    run = results.run(run_id)
    disk, reason = run.state_and_reason()
    if submitted is None:
        note = _beat_note(run.heartbeat()) if disk is State.RUNNING else reason
        return RunStatus(disk, note)
    submission, index = submitted
    log = submission.log(index, results.path / "jobs")
    if disk.final:
        return RunStatus(disk, reason, log)
    beat = run.heartbeat()
    if jobs is None:
        return RunStatus(State.QUEUED if disk is State.PLANNED else disk, _beat_note(beat), log)
    job = jobs.get((submission.name, index))
    if job is not None and job.active:
        ours = beat is not None and beat.job in (None, job.id)
        if job.state not in ("PENDING", "REQUEUED", "CONFIGURING") and ours:
            return RunStatus(State.RUNNING, _beat_note(beat), log)
        if job.state == "PENDING":
            return RunStatus(State.QUEUED, f"job {job.id}: {job.reason}", log)
        return RunStatus(State.QUEUED, f"waits in job {job.id} on {job.node}", log)
    age = time.time() - submission.time
    if job is None and submission.job is None and age < FORGIVEN:
        return RunStatus(State.QUEUED, "being submitted", log)
    if disk is State.RUNNING and beat is not None and time.time() - beat.time < SILENT:
        return RunStatus(State.RUNNING, _beat_note(beat), log)
    return RunStatus(State.LOST, _gone(job, submission, index, log), log)


def _beat_note(beat: Heartbeat | None) -> str:
    if beat is None:
        return ""
    where = beat.node or beat.host
    return f"step {beat.step} on {where}, heartbeat {time.time() - beat.time:.0f} s ago"


def _gone(job: QueuedJob | None, submission: Submission, index: int, log: Path | None) -> str:
    name = f"{submission.job}_{index}" if len(submission.packs) > 1 else submission.job
    what = f"job {name} is gone" if job is None else f"job {name} {job.state} on {job.node or '?'}"
    if log is None or not log.stat().st_size:
        what += ", without a word in its log: can the node see the results directory, has it room?"
    return what
