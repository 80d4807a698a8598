"""The settings with which a process trains runs, and requests made to it meanwhile."""

from dataclasses import dataclass
from pathlib import Path

MAX_VECTORIZED = 64
"""The most runs that are trained as one program by default: more gain little."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How runs are executed; on a CPU no setting changes the results."""

    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()
    keep_predictions: bool = False
    """Whether every example's logits are kept at the evaluations."""
    keep_weights: tuple[str, ...] = ()
    """The selection rules whose weights are kept, and `last`, see `oodbench.train.kept_weights`."""
    scratch: bool = False
    """Whether the results are discarded, so that no digests of data files are needed."""
    loader_workers: int = 0
    """Threads of a run that read stored data ahead; a launcher gives each its share of the cores."""
    observers: tuple[str, ...] = ()
    """The observers that follow each run, see `oodbench.train.observers`."""
    vectorize: int | None = None
    """The most runs that are trained as one program; None: `MAX_VECTORIZED`."""
    device_share: float = 1.0
    """The fraction of the device's memory for each worker."""

    run_timeout: float | None = None
    """Seconds after which a run fails that has not ended, with its process and all runs that are vectorized
    with it. None: never."""


@dataclass
class Interrupts:
    """Requests to the run being trained, made by signals and checked every second or step."""

    save: bool = False
    """Whether a checkpoint is to be written."""
    stop: bool = False
    """Whether training is to end, after a checkpoint."""
