"""What `launch` and `retry` do once they know the runs: train them, and say how it ended."""

import math
import os
from collections import Counter
from dataclasses import replace

from rich.console import Console

from oodbench.errors import UserError
from oodbench.job import Job
from oodbench.progress import title
from oodbench.train.settings import crowds


def train(job: Job, launcher: str, workers: int | None, console: Console) -> None:
    """Train the job's runs on `job.devices[0]`, as the user names devices, and say how it ended.

    Exits with 1 if runs of the sweep have failed, with 130 if interrupted.
    """
    from oodbench import launchers

    results, specs = job.results, job.specs
    if "search" not in results.plan()["settings"]:  # which chooses few runs at a time
        at_hand = job.resources.runs_per_job if launcher == "slurm" else math.inf
        together = replace(job.settings, crowds=crowds(specs.values(), at_hand))
        job = replace(job, settings=together)
    if launcher == "slurm":
        from oodbench.slurm import device_of_runs

        job = replace(job, devices=(device_of_runs(job.devices[0], job.resources),))
    else:
        devices = launchers.devices(job.devices[0])
        count = workers or (os.cpu_count() or 1 if devices == ("cpu",) else len(devices))
        job = replace(job, devices=devices, workers=count)
    try:
        ended = launchers.LAUNCHERS[launcher](job) if job.ids else {}
    except KeyboardInterrupt:
        console.print("Interrupted; the same launch goes on where it was.")
        raise SystemExit(130) from None
    queued = sum(state == "queued" for state in ended.values())
    if queued:
        console.print(f"{queued} runs queued; `status --watch` follows them.", highlight=False)
        return
    final = Counter(results.run(i).state() for i in specs)
    console.print(
        ", ".join(f"{n} {s}" for s, n in final.items())
        + f" of {len(specs)} runs in {results.path}",
        highlight=False,
    )
    elsewhere = sum(s == "elsewhere" for s in ended.values())
    if elsewhere:
        console.print(f"{elsewhere} runs are being trained by another launch.")
    if final["done"] + final["diverged"]:
        from oodbench.report.printing import print_table

        try:
            print_table(results)
            console.print("Other selection rules: `python -m oodbench.report table --help`.")
        except UserError as error:  # the runs are done, whatever this selection rule lacks
            console.print(f"no table: {error}", markup=False, highlight=False)
    if final["failed"]:
        console.print("`status` shows why runs failed; `retry` trains them again.")
        raise SystemExit(1)


def show_jobs(job: Job, launcher: str, console: Console) -> None:
    """Show what `launch --launcher slurm` would submit; raises UserError for another launcher."""
    from oodbench.slurm import device_of_runs, planned_arrays

    if launcher != "slurm":
        raise UserError("--dry-run shows Slurm jobs: add --launcher slurm")
    device = device_of_runs(job.devices[0], job.resources)
    arrays = planned_arrays(replace(job, ids=tuple(job.specs), devices=(device,)))
    for array in arrays:
        console.print(f"\n{array.folder}: {len(array.packs)} jobs", soft_wrap=True)
        console.print(array.text, markup=False, highlight=False, soft_wrap=True)
    first = arrays[0].packs[0] if arrays else None
    if first is not None:
        console.print(f"The first job's {len(first.ids)} runs, {first.workers} at a time:")
        for run_id in first.ids[:5]:
            console.print(f"  {title(job.specs[run_id])}", markup=False, highlight=False)
