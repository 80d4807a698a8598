"""What `launch` and `retry` do once they know the runs: train them, and say how it ended."""

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from oodbench.errors import UserError
from oodbench.files import is_part
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.launchers.in_process import debug
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.launchers.local import local
from oodbench.sweep.launchers.progress import title
from oodbench.sweep.launchers.slurm import slurm
from oodbench.sweep.plan import Sweep
from oodbench.sweep.search import Study, objectives
from oodbench.train.settings import large_groups


def train(job: Job, launcher: str, workers: int | None, console: Console) -> None:
    """Train the job's runs on `job.devices[0]`, as the user names devices, and say how it ended.

    Exits with 1 if runs of the sweep have failed, with 130 if interrupted.
    """
    results, specs = job.results, job.specs
    if "search" not in results.plan()["settings"]:  # which chooses few runs at a time
        at_hand = job.resources.runs_per_job if launcher == "slurm" else math.inf
        together = replace(job.settings, large_groups=large_groups(specs.values(), at_hand))
        job = replace(job, settings=together)
    if launcher == "slurm":
        from oodbench.sweep.launchers.slurm import device_of_runs

        job = replace(job, devices=(device_of_runs(job.devices[0], job.resources),))
    else:
        chosen = devices(job.devices[0])
        count = workers or (os.cpu_count() or 1 if chosen == ("cpu",) else len(chosen))
        job = replace(job, devices=chosen, workers=count)
    try:
        ended = LAUNCHERS[launcher](job) if job.ids else {}
    except KeyboardInterrupt:
        console.print("Interrupted; the same launch goes on where it was.")
        raise SystemExit(130) from None
    queued = sum(state is State.QUEUED for state in ended.values())
    if queued:
        console.print(f"{queued} runs queued; `status --watch` follows them.", highlight=False)
        return
    final = Counter(results.run(i).state() for i in specs)
    console.print(
        ", ".join(f"{n} {s}" for s, n in final.items())
        + f" of {len(specs)} runs in {results.path}",
        highlight=False,
    )
    elsewhere = sum(s is State.ELSEWHERE for s in ended.values())
    if elsewhere:
        console.print(f"{elsewhere} runs are being trained by another launch.")
    if any(state.complete for state in final):
        from oodbench.report.printing import print_table

        try:
            print_table(results)
            console.print("Other selection rules: `python -m oodbench.report table --help`.")
        except UserError as error:  # the runs are done, whatever this selection rule lacks
            console.print(f"no table: {error}", markup=False, highlight=False)
    if final[State.FAILED] or final[State.BROKEN]:
        console.print("`status` shows why runs failed; `retry` trains them again.")
        raise SystemExit(1)


def show_jobs(job: Job, launcher: str, console: Console) -> None:
    """Show what `launch --launcher slurm` would submit; raises UserError for another launcher."""
    from oodbench.sweep.launchers.slurm import device_of_runs, planned_arrays

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


LAUNCHERS: dict[str, Callable[[Job], dict[str, State]]] = {
    "local": local,
    "debug": debug,
    "slurm": slurm,
}


def devices(wanted: str) -> tuple[str, ...]:
    """`auto` (every CUDA device, else the CPU) or a list such as `cuda:0,cuda:1`, checked."""
    import torch

    count = torch.cuda.device_count()
    if wanted == "auto":
        return tuple(f"cuda:{i}" for i in range(count)) or ("cpu",)
    names = tuple(name.strip() for name in wanted.split(","))
    for name in names:
        if name != "cpu" and name not in [f"cuda:{i}" for i in range(count)]:
            raise UserError(f"there is no device '{name}' here (cpu and {count} CUDA devices)")
    return names


def adopt(job: Job, launcher: str, sweep: Sweep) -> None:
    """Write the plan into the results directory, unless it holds another sweep's results."""
    results, runs = job.results, job.specs
    if (results.path / "sweep.json").exists():
        stored = results.plan()
        if stored["name"] != sweep.name:
            raise UserError(
                f"{results.path} holds the sweep '{stored['name']}', not '{sweep.name}'; "
                "use another --out"
            )
        old, new = stored["settings"]["sweep"], _fixed(sweep, job.studies)
        for key, value in new.items():
            if old.get(key) != value:
                raise UserError(
                    f"{results.path} holds '{stored['name']}' with {key} {old.get(key)}, not {value}; "
                    "use another --out"
                )
        runs = {i: RunSpec.from_json(s) for i, s in stored["runs"].items()} | runs
    elif results.path.exists() and not all(map(is_part, results.path.iterdir())):
        raise UserError(f"{results.path} is not empty and holds no sweep; use another --out")
    data_dir = job.settings.data_dir
    settings = {
        "sweep": _fixed(sweep, job.studies),
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": list(job.settings.plugins),
        "keep_predictions": job.settings.keep_predictions,
        "launcher": launcher,
        "resources": job.resources.model_dump(exclude_defaults=True),
    }
    if sweep.search is not None:
        study = job.studies[0]
        settings["search"] = sweep.search.model_dump() | {
            "objective": objectives(job.studies),
            "draws": study.total // study.trials,
        }
    results.write_plan(sweep.name, settings, runs)


def _fixed(sweep: Sweep, studies: Sequence[Study]) -> dict[str, Any]:
    """What the runs of one results directory must share, so that a table never mixes them."""
    keys = {"steps", "evaluate_every", "network", "holdout", "validation_environments"}
    search = None
    if sweep.search is not None:
        shared = {"trials": sweep.trials, "objective": objectives(studies)}
        search = sweep.search.model_dump(exclude={"runs"}) | shared
    return sweep.model_dump(mode="json", include=keys) | {"search": search}
