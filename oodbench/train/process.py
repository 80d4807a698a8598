"""The same process settings for every run, even if plug-ins or scripts have changed them."""

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.backends import cudnn

from oodbench.errors import UserError
from oodbench.registry import working_directory
from oodbench.seeds import seed_torch

TF32_CAPABILITY = 8, 0
"""The least compute capability with TF32 (NVIDIA Ampere)."""
AUTOCAST = {"bfloat16": torch.bfloat16}
"""Values of `RunSpec.precision` by which networks run under autocast, with the dtype."""
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object], Any], ...] = (
    (working_directory, os.chdir, None),
    (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    # None instead of the CPU, which torch would keep as a mode that slows down every call
    (
        lambda: torch.empty(0).device,  # torch 2.4's get_default_device does not know None
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        torch.device("cpu"),
    ),
    (torch.is_grad_enabled, torch.set_grad_enabled, True),
    (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1]),
        (False, False),
    ),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
    *(
        (partial(getattr, cudnn, flag), partial(setattr, cudnn, flag), clean)
        for flag, clean in (("deterministic", False), ("benchmark", False), ("allow_tf32", True))
    ),
    # products with subnormal numbers take a hundred times as long; the moments of components with masked
    # gradients become subnormal. If they are flushed, half of the smallest normal number is 0
    (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal, True),
    (torch.get_num_threads, torch.set_num_threads, None),
)
"""Functions that read and write a setting of the process, and its value in training (None: unchanged)."""


@contextmanager
def clean_process(threads: int, precision: str = "float32") -> Iterator[None]:
    """Within the block, the process has torch's default settings and `threads` threads.

    The precision `tf32` allows TF32 in matrix products. Convolutions always use TF32 on CUDA devices that
    have it.
    """
    before = [read() for read, _, _ in _SETTINGS]
    _write([clean for _, _, clean in _SETTINGS])
    torch.set_num_threads(threads)
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        _write(before)


def _write(values: Sequence[Any]) -> None:
    for (read, write, _), value in zip(_SETTINGS, values, strict=True):
        if value is not None and read() != value:
            write(value)


def check_device(device: str) -> None:
    """Raise UserError if this machine does not have the device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"there is no device '{device}' here") from error


def check_precision(precision: str, device: str) -> None:
    """Raise UserError if a device does not support a precision."""
    cuda = device.startswith("cuda")
    if precision == "tf32" and not (
        cuda and torch.cuda.get_device_capability(device) >= TF32_CAPABILITY
    ):
        raise UserError(f"precision tf32 needs a CUDA device from Ampere on, which {device} is not")
    if precision == "bfloat16" and cuda:
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                raise UserError(f"precision bfloat16 needs a newer CUDA device than {device}")


def seed_process(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python."""
    seed_torch(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the global random generators after the block."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    states = generator_states()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            set_generator_states(states)


def generator_states() -> dict[str, Any]:
    """The states of numpy's and Python's global generators, as plain values for a checkpoint."""
    name, keys, *rest = np.random.get_state(legacy=True)
    version, inner, gauss = random.getstate()
    return {
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "python": [version, list(inner), gauss],
    }


def set_generator_states(states: dict[str, Any]) -> None:
    """Restore what `generator_states` returned."""
    np.random.set_state(tuple(states["numpy"]))
    version, inner, gauss = states["python"]
    random.setstate((version, tuple(inner), gauss))
