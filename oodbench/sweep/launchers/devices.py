"""The devices of this machine."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace

from oodbench.errors import UserError
from oodbench.sweep.launchers import Job


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
