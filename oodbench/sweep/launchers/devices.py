"""The devices of this machine, and whether the runs that share a GPU fit into its memory."""

import itertools
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from oodbench.errors import UserError
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.launchers import Job
from oodbench.train.settings import TrainSettings

MEASURED_STEPS = 2


def placed(job: Job, runs_per_gpu: int) -> Job:
    """Return the job with the devices of this machine and the number of its processes.

    Where all devices are GPUs, `runs_per_gpu` processes share each and see no other.
    """
    devices, workers = available_devices(job.options.devices), job.options.workers
    if devices == ("cpu",):
        return replace(job, devices=devices, workers=workers or os.cpu_count() or 1)
    gpus = gpus_of(devices)
    seen = ("cuda:0",) if gpus else devices
    return replace(job, devices=seen, gpus=gpus, workers=workers or len(devices) * runs_per_gpu)


def available_devices(wanted: str) -> tuple[str, ...]:
    """Return the devices that `wanted` names: `auto` is every CUDA device, or the CPU if there is none.

    Otherwise it is a list such as `cuda:0,cuda:1`; raises UserError for a device that is not here.
    """
    import torch

    count = torch.cuda.device_count()
    if wanted == "auto":
        return tuple(f"cuda:{i}" for i in range(count)) or ("cpu",)
    names = tuple(name.strip() for name in wanted.split(","))
    for name in names:
        if name != "cpu" and name not in [f"cuda:{i}" for i in range(count)]:
            raise UserError(f"there is no device '{name}' here (cpu and {count} CUDA devices)")
    return names


def gpus_of(devices: Sequence[str]) -> tuple[str, ...]:
    """Return the devices by their names in CUDA_VISIBLE_DEVICES; none unless all are CUDA devices.

    A process that sees a single GPU, as `cuda:0`, takes memory of no other.
    """
    if not all(name.startswith("cuda:") for name in devices):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    places = [int(name.partition(":")[2]) for name in devices]
    return tuple(visible.split(",")[i].strip() if visible else str(i) for i in places)


def check_precision(job: Job) -> None:
    """Raise UserError if a device lacks the precision of a run; others than float32 load torch here."""
    wanted = {spec.precision for spec in job.specs.values()} - {"float32"}
    if wanted:
        from oodbench.train import process

        for name, device in itertools.product(
            sorted(wanted), available_devices(job.options.devices)
        ):
            process.check_precision(name, device)


def check_memory(job: Job) -> None:
    """Raise UserError if runs that share a GPU need more memory than the first GPU has free.

    One run of each row, that of the largest batch, does two steps there in a process of its own. Where
    no GPU is shared nothing is measured: such a run fails by itself, with torch's message.
    """
    together = -(-job.at_once // max(1, len(job.gpus)))
    if together < 2 or not job.gpus:
        return
    settings = replace(job.settings_of(0), device="cuda:0")
    with ProcessPoolExecutor(1, get_context("spawn"), _see, (job.gpus[0],)) as process:
        specs = largest(job.specs[i] for i in job.ids)
        free, needs = process.submit(_measure, specs, settings).result()
    check_room(free, needs, together)


def check_room(free: int, needs: dict[str, int], together: int) -> None:
    """Raise UserError if `together` runs of the row that needs most, in bytes, do not fit into `free`."""
    row = max(needs, key=lambda name: needs[name])
    need = max(1, needs[row])
    if together * need > free:
        advice = f"runs_per_gpu={free // need} fits" if free >= need else "not even one run fits"
        raise UserError(
            f"{together} runs a GPU do not fit: one of {row} takes {need / 2**30:.1f} GB, and "
            f"{free / 2**30:.1f} GB are free; {advice}"
        )


def largest(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return the run of each row, a label on a dataset, that has the largest batches."""

    def batch(spec: RunSpec) -> float:
        return spec.hparams.get("batch_size") or float("inf")  # 0 means all examples

    rows: dict[tuple[str, str], RunSpec] = {}
    for spec in sorted(specs, key=batch):
        rows[spec.label, spec.dataset_name] = spec
    return list(rows.values())


def _see(gpu: str) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def _measure(specs: Sequence[RunSpec], settings: TrainSettings) -> tuple[int, dict[str, int]]:
    """Return the bytes that are free on the device, and those that a process with a run of each row takes.

    A process takes what torch keeps for tensors, and about half a gigabyte that CUDA keeps for it.
    """
    import torch

    from oodbench.registry import load_plugins
    from oodbench.train.run import Run

    load_plugins(settings.plugins)
    free, total = torch.cuda.mem_get_info(settings.device)
    context = min(2**29, total // 16)
    needs: dict[str, int] = {}
    for spec in specs:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(settings.device)
        run = Run(spec, settings)
        run.run_steps(min(MEASURED_STEPS, spec.steps))
        reserved = torch.cuda.max_memory_reserved(settings.device)
        needs[f"{spec.label} on {spec.dataset_name}"] = context + reserved
        del run
    return min(total, free + context), needs
