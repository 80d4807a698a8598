"""The settings with which a process trains runs, and requests to it during training."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How runs are trained; on a CPU, settings do not change results."""

    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()
    keep_predictions: bool = False
    """Whether to keep every example's logits at every evaluation."""
    keep_weights: tuple[str, ...] = ()
    """Selection rules, or `last`, whose weights are kept, see `oodbench.train.kept_weights`."""
    scratch: bool = False
    """Whether results are discarded, so that digests of data files are not needed."""
    loader_workers: int = 0
    """A run's threads that read stored data ahead."""
    observers: tuple[str, ...] = ()
    """The observers of each run, see `oodbench.train.observers`."""
    vectorize: int = 64
    """The most runs in a program; more gain little."""
    device_share: float = 1.0
    """The fraction of the device's memory that this process may use."""
    run_timeout: float | None = None
    """Seconds after which a run fails, with its process and all runs of the same program; None: never."""


@dataclass
class Interrupts:
    """Requests by signals, which training checks after every step or about once a second."""

    save: bool = False
    """Whether to write a checkpoint."""
    stop: bool = False
    """Whether to write a checkpoint and end."""
