"""The devices of this machine, as users name them."""

import os
from collections.abc import Sequence

from oodbench.errors import UserError


def gpus_of(devices: Sequence[str]) -> tuple[str, ...]:
    """The devices by their names in CUDA_VISIBLE_DEVICES; none unless all are CUDA devices.

    A process that sees a single GPU, as `cuda:0`, takes memory of no other.
    """
    if not all(name.startswith("cuda:") for name in devices):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    places = [int(name.partition(":")[2]) for name in devices]
    return tuple(visible.split(",")[i].strip() if visible else str(i) for i in places)


def available_devices(wanted: str) -> tuple[str, ...]:
    """The devices that `wanted` names: `auto` is every CUDA device, or the CPU if there is none.

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
