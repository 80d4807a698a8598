"""The state of the process that a plug-in may change, and that every run is to find clean."""

import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class _Setting:
    """A setting of the whole process."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    clean: Any = None
    """Its value where runs are trained; None: what it was before."""


def _directory() -> str | None:
    """The working directory, or None if it has been deleted."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None


def _enter(directory: str | None) -> None:
    if directory is not None:
        os.chdir(directory)


def _deterministic() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


_SETTINGS = {
    "working directory": _Setting(_directory, _enter),
    "default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    # None and not the CPU, which torch would keep as a mode that slows every call
    "default device": _Setting(
        lambda: torch.empty(0).device,  # get_default_device of torch 2.4 knows no None
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        torch.device("cpu"),
    ),
    "grad mode": _Setting(torch.is_grad_enabled, torch.set_grad_enabled, True),
    "anomaly detection": _Setting(
        torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False
    ),
    "choice of deterministic algorithms": _Setting(
        _deterministic,
        lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1]),
        (False, False),
    ),
    "precision of float32 products": _Setting(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"
    ),
    "deterministic flag of cuDNN": _Setting(
        lambda: torch.backends.cudnn.deterministic,
        lambda value: setattr(torch.backends.cudnn, "deterministic", value),
        False,
    ),
    "benchmark flag of cuDNN": _Setting(
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
        False,
    ),
    "number of threads": _Setting(torch.get_num_threads, torch.set_num_threads),
}


def _read() -> dict[str, Any]:
    return {name: setting.read() for name, setting in _SETTINGS.items()}


def _write(values: dict[str, Any]) -> dict[str, Any]:
    """Set the values; return those that were replaced."""
    former = {}
    for name, value in values.items():
        now = _SETTINGS[name].read()
        if now != value:
            former[name] = now
            _SETTINGS[name].write(value)
    return former


@contextmanager
def clean_process(threads: int) -> Iterator[None]:
    """Within it the process is as runs are to find it, with so many threads; then as it was before.

    Clean are torch's own defaults: float32 on the CPU, gradients on, no deterministic algorithms.
    """
    before = _read()
    clean = {name: s.clean for name, s in _SETTINGS.items() if s.clean is not None}
    _write(clean | {"number of threads": threads})
    try:
        yield
    finally:
        _write(before)


@contextmanager
def unchanged(who: str) -> Iterator[None]:
    """Put back what the block changes in the process and leaves so, and warn that `who` changed it."""
    before = _read()
    try:
        yield
    finally:
        for name, left in _write(before).items():
            warnings.warn(
                f"{who} changed the process's {name} to {left}; it is {before[name]} again, so that "
                "other runs do not depend on it",
                stacklevel=3,
            )


def seed_process(seed: int) -> None:
    """Seed the generators that belong to the process: those of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Within it anything may be drawn and seeded; then the process's generators are as they were before."""
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
    """Go on from what `generator_states` returned."""
    np.random.set_state(tuple(states["numpy"]))
    version, inner, gauss = states["python"]
    random.setstate((version, tuple(inner), gauss))
