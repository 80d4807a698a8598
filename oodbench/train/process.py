"""One state of the process and device for every run, even if plug-ins or scripts have changed it."""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.backends import cudnn

from oodbench.errors import UserError
from oodbench.registry import working_directory

TF32_CAPABILITY = 8, 0
"""The compute capability of the first devices with TF32 (NVIDIA Ampere)."""
AUTOCAST = {"bfloat16": torch.bfloat16}
"""The precision that the network is trained in, where it is not that of its parameters."""


class _Setting(NamedTuple):
    """A setting of the whole process."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    clean: Any = None
    """The setting's value where runs are trained; None leaves it unchanged."""


def _enter(directory: Path | None) -> None:
    if directory is not None:
        os.chdir(directory)


def _deterministic() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


def _flushes_subnormals() -> bool:
    """Half of the smallest number with full precision is taken for 0."""
    return sys.float_info.min / 2 == 0


_SETTINGS = (
    _Setting(working_directory, _enter),
    _Setting(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    # None and not the CPU, which torch would keep as a mode that slows every call
    _Setting(
        lambda: torch.empty(0).device,  # get_default_device of torch 2.4 knows no None
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        torch.device("cpu"),
    ),
    _Setting(torch.is_grad_enabled, torch.set_grad_enabled, True),
    _Setting(
        _deterministic,
        lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1]),
        (False, False),
    ),
    _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
    *(
        _Setting(partial(getattr, cudnn, flag), partial(setattr, cudnn, flag), False)
        for flag in ("deterministic", "benchmark")
    ),
    # a product with such a number takes a hundred times as long, as in the moments of components that a
    # mask has kept from moving
    _Setting(_flushes_subnormals, torch.set_flush_denormal, True),
    _Setting(torch.get_num_threads, torch.set_num_threads),
)


def _write(setting: _Setting, value: Any) -> None:
    if setting.read() != value:
        setting.write(value)


@contextmanager
def clean_process(threads: int) -> Iterator[None]:
    """Give the process torch's default settings and a number of threads; afterwards restore its own."""
    before = [(setting, setting.read()) for setting in _SETTINGS]
    for setting in _SETTINGS:
        if setting.clean is not None:
            _write(setting, setting.clean)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        for setting, value in before:
            _write(setting, value)


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Compute float32 matrix products and convolutions in TF32 within the block if `precision` is `tf32`.

    Otherwise torch's defaults hold: products in float32, convolutions in TF32 on CUDA devices that
    support it.
    """
    if precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high")
        cudnn.allow_tf32 = True
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]


def check_device(device: str) -> None:
    """Raise UserError if this machine lacks the device."""
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
        raise UserError(f"precision tf32 needs a CUDA device from Ampere on, which {device} is not")
    if precision == "bfloat16" and cuda:
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                raise UserError(f"precision bfloat16 needs a newer CUDA device than {device}")


def seed_process(seed: int) -> None:
    """Seed the generators that belong to the process: those of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the process's random generators after the block."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if started else ()
    states = generator_states()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            set_generator_states(states)


def generator_states() -> dict[str, Any]:
    """The states of numpy's and Python's generators, in values that a checkpoint may hold."""
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
