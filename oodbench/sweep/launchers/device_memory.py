"""Whether the runs that are to share a GPU fit into its memory, asked before they start."""

import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from oodbench.errors import UserError
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.launchers.job import Job
from oodbench.train.settings import TrainSettings

SECONDS = 60.0
"""Seconds after which no further kind of run is measured."""
MEASURED_STEPS = 2


def check_memory(job: Job) -> None:
    """Raise UserError if runs that share a GPU need more memory than it has free.

    One run of each row, that of the largest batch, does two steps on the first GPU in a process of its
    own. Where no GPU is shared nothing is measured: such a run fails by itself, with torch's message.
    """
    together = -(-job.at_once // max(1, len(job.gpus)))
    if together < 2 or not job.gpus:
        return
    kinds = largest(job.specs[i] for i in job.ids)
    settings = replace(job.settings_of(0), device="cuda:0")
    needs: dict[str, int] = {}
    for gpu in job.gpus:
        with ProcessPoolExecutor(1, get_context("spawn"), _see, (gpu,)) as process:
            free, found = process.submit(_measured, [] if needs else kinds, settings).result()
        needs = needs or found
        if needs:
            check_room(gpu, free, needs, together)


def check_room(gpu: str, free: int, needs: dict[str, int], together: int) -> None:
    """Raise UserError if `together` runs of the row that needs most, in bytes, do not fit into `free`."""
    row = max(needs, key=lambda name: needs[name])
    need = max(1, needs[row])
    if together * need > free:
        fit = free // need
        gigabytes = f"{need / 2**30:.1f} GB, and {free / 2**30:.1f} GB are free on GPU {gpu}"
        advice = f"`--runs-per-gpu {fit}` fits" if fit else "not even one run fits"
        raise UserError(
            f"{together} runs a GPU do not fit: one of {row} takes {gigabytes}; {advice}"
        )


def largest(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The run of each row, a label on a dataset, that has the largest batches."""
    found: dict[tuple[str, str], RunSpec] = {}
    for spec in specs:
        row = spec.label, spec.dataset_name
        if row not in found or _batch(spec) > _batch(found[row]):
            found[row] = spec
    return list(found.values())


def _batch(spec: RunSpec) -> float:
    """The size of a run's batches; 0 stands for all that an environment has."""
    return spec.hparams.get("batch_size") or float("inf")


def _see(gpu: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def _measured(specs: Sequence[RunSpec], settings: TrainSettings) -> tuple[int, dict[str, int]]:
    """The bytes that are free on the device, and those that a process with a run of each row takes.

    A process takes what torch keeps for tensors and what CUDA keeps for the process itself.
    """
    import torch

    from oodbench.registry import load_plugins
    from oodbench.train.run import Run

    load_plugins(settings.plugins)
    before, total = torch.cuda.mem_get_info(settings.device)
    own, start = _context(settings.device), time.monotonic()
    needs: dict[str, int] = {}
    for spec in specs:
        if needs and time.monotonic() - start > SECONDS:
            break
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(settings.device)
        run = Run(spec, settings)
        run.run_steps(min(MEASURED_STEPS, spec.steps))
        kept = torch.cuda.max_memory_reserved(settings.device)
        needs[f"{spec.label} on {spec.dataset_name}"] = own + kept
        del run
    return min(total, before + own), needs


def _context(device: str) -> int:
    """About what CUDA keeps for a process, its kernels loaded: half a gigabyte, of a small GPU less."""
    import torch

    total: int = torch.cuda.mem_get_info(device)[1]
    return min(2**29, total // 16)
