"""Questions to Slurm and orders to it, by its own commands. Imports no torch."""

import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from oodbench.errors import UserError, unknown
from oodbench.sweep.launchers.slurm_resources import Resources, megabytes, minutes

DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between two attempts while the controller does not answer."""
_BUSY = re.compile(
    r"unable to contact|connect failure|connection (refused|reset|timed out)|timed out|"
    r"temporarily unable|resource temporarily unavailable|try again|zero bytes|"
    r"backup controller|rate limit",
    re.IGNORECASE,
)
ACTIVE = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
    "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING", "SIGNALING", "STAGE_OUT",
}  # fmt: skip
"""The states of a job that has not ended yet."""


@dataclass(frozen=True)
class QueuedJob:
    """A job as Slurm knows it."""

    id: str
    """The job's id, as `id` or `array_index`."""
    state: str
    reason: str
    node: str

    @property
    def active(self) -> bool:
        """Whether it has not ended yet."""
        return self.state in ACTIVE


def busy(message: str) -> bool:
    """Whether an error of Slurm's commands says to come back later."""
    return _BUSY.search(message) is not None


def delays() -> Iterator[float]:
    """The waits between attempts; then UserError."""
    yield from DELAYS
    raise UserError(f"Slurm's controller has not answered for {sum(DELAYS):.0f} s; try again later")


def ask(*command: str, patient: bool = True) -> str:
    """The output of one of Slurm's commands, which is called again, with back-off, while Slurm is busy.

    Raises UserError with Slurm's own sentence, or if the command is not there.
    """
    if shutil.which(command[0]) is None:
        raise UserError(
            f"there is no Slurm on this machine ('{command[0]}' is not on the PATH): "
            "launch where it is, or use --launcher local"
        )
    for delay in delays() if patient else iter([0.0]):
        result = subprocess.run(command, capture_output=True, text=True)
        message = " ".join(result.stderr.split())
        if result.returncode == 0:
            return result.stdout
        if not busy(message) or not patient:
            break
        time.sleep(delay)
    raise UserError(f"{command[0]}: {message.removeprefix(f'{command[0]}: error: ')}")


def queue(names: Collection[str], patient: bool = False) -> dict[tuple[str, int], QueuedJob]:
    """Slurm's jobs by (job name, array index), those that ended lately too; raises UserError."""
    if not names:
        return {}
    lines = ask(
        "squeue", "--noheader", "--array", "--states=all", f"--name={','.join(names)}",
        "--format=%j|%i|%T|%N|%r", patient=patient,
    ).splitlines()  # fmt: skip
    found = {}
    for line in lines:
        name, job, state, node, reason = line.strip().split("|", 4)
        index = job.partition("_")[2]
        found[name, int(index or 0)] = QueuedJob(job, state, reason, node)
    return found


def cancel(names: Collection[str]) -> int:
    """Cancel the jobs of these names; returns how many had not ended. Raises UserError."""
    active = [job.id for job in queue(names, patient=True).values() if job.active]
    arrays = sorted({job.partition("_")[0] for job in active})
    if arrays:
        ask("scancel", *arrays)
    return len(active)


def max_array_size() -> int:
    """The most jobs of one array."""
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"))
    return int(match[1]) if match else 1001


def queued_by_user() -> int:
    """Jobs that the user has queued or running; every task of an array counts."""
    return len(ask("squeue", "--noheader", "--array", "--me", "--format=%i").split())


def check(resources: Resources) -> None:
    """Raise UserError if no node of the partition, or its time limit, can meet the request."""
    lines = ask("sinfo", "--noheader", "--format=%P|%l|%c|%m|%G").split()
    rows = [dict(zip(("name", "time", "cpus", "memory", "gres"), r.split("|", 4), strict=True))
            for r in lines]  # fmt: skip
    name = resources.partition
    if name is None:
        default = [r["name"] for r in rows if r["name"].endswith("*")]
        if not default:
            raise UserError("the cluster has no default partition: name one with --partition")
        name = default[0].rstrip("*")
    names = [n.strip() for n in name.split(",")]
    known = [r["name"].rstrip("*") for r in rows]
    for wanted in names:
        if wanted not in known:
            raise unknown("partition", wanted, dict.fromkeys(known), "this cluster")
    rows = [r for r in rows if r["name"].rstrip("*") in names]
    place = f"partition '{name}'"
    longest = max((minutes(r["time"]) or float("inf") for r in rows), default=float("inf"))
    if (minutes(resources.time) or 0) > longest:
        limit = next(r["time"] for r in rows if minutes(r["time"]) == longest)
        raise UserError(f"time {resources.time} is over the limit of {place}, {limit}")
    most = max(_gpus(r["gres"], resources.gpu_type) for r in rows)
    if resources.gpu_count > most:
        kind = f" of type {resources.gpu_type}" if resources.gpu_type else ""
        raise UserError(
            f"{resources.gpu_count} GPUs{kind} for a job, but no node of {place} has more than {most}"
        )
    cores = max(int(r["cpus"].rstrip("+")) for r in rows)
    if resources.cpus > cores:
        raise UserError(
            f"{resources.cpus} cores for a job, but no node of {place} has more than {cores}"
        )
    memory = max(int(r["memory"].rstrip("+")) for r in rows)
    if resources.memory is not None and megabytes(resources.memory) > memory:
        raise UserError(
            f"{resources.memory} of memory for a job, but no node of {place} has over {memory}M"
        )


def _gpus(gres: str, kind: str | None) -> int:
    """The GPUs in a node's list of resources, such as `gpu:a100:4(S:0-1),lscratch:100`."""
    count = 0
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *middle, number = item.split(":") if ":" in item else (item, "0")
        if name == "gpu" and number.isdigit() and (kind is None or kind in middle):
            count += int(number)
    return count
