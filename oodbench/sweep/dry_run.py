"""What `launch --launcher slurm --dry-run` shows."""

from dataclasses import replace

from oodbench.errors import UserError
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.launchers.progress import title
from oodbench.sweep.launchers.slurm import device_of_runs, planned_arrays
from oodbench.terminal import Terminal

RUNS_SHOWN = 5
"""Runs of the first job that are listed."""


def show_jobs(job: Job, launcher: str, devices: str, console: Terminal) -> None:
    """Print the jobs that a launch would submit; raises UserError for another launcher than `slurm`."""
    if launcher != "slurm":
        raise UserError("--dry-run shows Slurm jobs: add --launcher slurm")
    device = device_of_runs(devices, job.resources)
    arrays = planned_arrays(replace(job, ids=tuple(job.specs), devices=(device,)))
    for array in arrays:
        console.print(f"\n{array.folder}: {len(array.packs)} jobs", soft_wrap=True)
        console.print(array.text, soft_wrap=True)
    first = arrays[0].packs[0] if arrays else None
    if first is not None:
        console.print(f"The first job's {len(first.ids)} runs, {first.workers} at a time:")
        for run_id in first.ids[:RUNS_SHOWN]:
            console.print(f"  {title(job.specs[run_id])}")
