"""What a launcher is asked to do. Imports no torch."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from oodbench.records import Results, RunSpec
from oodbench.resources import Resources

Specs = dict[str, RunSpec]


@dataclass(frozen=True)
class Settings:
    """How runs are executed; none of it changes what they compute."""

    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()
    keep_predictions: bool = False
    """Whether every example's logits are kept at the evaluations."""
    loader_workers: int | None = None
    """Threads of a run that read stored data ahead; 0: the run reads them itself. None: as many as
    the launcher has cores for, or none without a launcher."""


@dataclass
class Interrupts:
    """What has been asked of the run being trained, from a signal handler; seen every few steps."""

    save: bool = False
    stop: bool = False

    def ask_to_save(self) -> None:
        """Have a checkpoint written soon."""
        self.save = True

    def ask_to_stop(self) -> None:
        """Have a checkpoint written soon, and the training end there."""
        self.stop = True


@dataclass(frozen=True)
class Job:
    """Some runs of a sweep, and by what they are to be trained."""

    name: str
    """The sweep's."""
    results: Results
    specs: Specs
    """All runs of the sweep."""
    ids: tuple[str, ...]
    """Those to train."""
    settings: Settings
    workers: int
    devices: tuple[str, ...] = ("cpu",)
    """Given to the workers in turn."""
    gpus: tuple[str, ...] = ()
    """Names as in CUDA_VISIBLE_DEVICES, given to the workers in turn; each sees its own only."""
    resources: Resources = field(default_factory=Resources)
    """What a cluster is asked for."""
    snapshot: bool = False
    """Whether a cluster's jobs run a frozen copy of the code."""

    def settings_of(self, worker: int) -> Settings:
        """The settings of a worker's runs: on its device, with its share of the cores to read data."""
        share = len(os.sched_getaffinity(0)) // max(1, min(self.workers, len(self.ids)))
        loaders = self.settings.loader_workers
        return replace(
            self.settings,
            device=self.devices[worker % len(self.devices)],
            loader_workers=max(1, share) if loaders is None else loaders,
        )
