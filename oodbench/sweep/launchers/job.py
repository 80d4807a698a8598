"""What a launcher is asked to do. Imports no torch."""

import os
from dataclasses import dataclass, field, replace

from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.launchers.slurm_resources import Resources
from oodbench.train.settings import TrainSettings

Specs = dict[str, RunSpec]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Some runs of a sweep, and by what they are to be trained."""

    name: str
    """The name of the sweep."""
    results: Results
    specs: Specs
    """All runs of the sweep."""
    ids: tuple[str, ...]
    """The ids of the runs to train."""
    settings: TrainSettings
    workers: int = 1
    """Processes at a time; a launcher on a cluster starts them in its jobs."""
    devices: tuple[str, ...] = ("cpu",)
    """The devices that the workers are given in turn."""
    gpus: tuple[str, ...] = ()
    """Names as in CUDA_VISIBLE_DEVICES; each worker is given the next one and sees no other."""
    resources: Resources = field(default_factory=Resources)
    """What a cluster is asked for."""
    snapshot: bool = False
    """Whether a cluster's jobs run a frozen copy of the code."""

    @property
    def at_once(self) -> int:
        """How many workers it has use for."""
        return min(self.workers, len(self.ids))

    def settings_of(self, worker: int) -> TrainSettings:
        """The settings of a worker's runs: on its device, with its share of the cores to read data."""
        share = len(os.sched_getaffinity(0)) // max(1, self.at_once)
        loaders = self.settings.loader_workers
        data_dir = self.settings.data_dir
        return replace(
            self.settings,
            data_dir=data_dir and data_dir.absolute(),  # a plug-in may change the working directory
            device=self.devices[worker % len(self.devices)],
            loader_workers=max(1, share) if loaders is None else loaders,
            device_share=1 / -(-self.at_once // max(1, len(self.gpus or self.devices))),
        )
