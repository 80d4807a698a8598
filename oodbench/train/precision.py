"""What a run computes in: float32, TF32 or bfloat16."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from oodbench.errors import UserError

TF32_CAPABILITY = 8, 0
"""The compute capability of the first devices with TF32 (NVIDIA Ampere)."""
AUTOCAST = {"bfloat16": torch.bfloat16}
"""What the network runs in while it is trained, where that is not its parameters' own precision."""


def check_device(device: str) -> None:
    """Raise UserError for a device that is not here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"there is no device '{device}' here") from error


def check_precision(precision: str, device: str) -> None:
    """Raise UserError if a device lacks a precision."""
    cuda = device.startswith("cuda")
    if precision == "tf32" and not (
        cuda and torch.cuda.get_device_capability(device) >= TF32_CAPABILITY
    ):
        raise UserError(f"precision tf32 is of CUDA devices from Ampere on, which {device} is not")
    if precision == "bfloat16" and cuda:
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                raise UserError(f"precision bfloat16 is of newer CUDA devices than {device}")


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Within it float32 matrix products and convolutions are in TF32 if `precision` is that.

    Otherwise the process stays as it is: torch's default has products in float32 and, on CUDA devices
    that have it, convolutions in TF32.
    """
    if precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
