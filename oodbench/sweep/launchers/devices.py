"""The devices of this machine, as users name them."""

from oodbench.errors import UserError


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
