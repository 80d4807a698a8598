"""What a launcher is asked to do. Imports no torch."""

import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from oodbench.resources import Resources
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec
from oodbench.search import Searches, Study

Specs = dict[str, RunSpec]
Kind = tuple[str, ...]
MOST = 64
"""Runs that are trained together at most where nobody says: more gain little."""
CROWD = 16
"""Runs of a kind from which on they are trained together on a CPU; fewer gain nothing there."""


@dataclass(frozen=True)
class Settings:
    """How runs are executed; none of it changes what they compute, up to round-off."""

    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()
    keep_predictions: bool = False
    """Whether every example's logits are kept at the evaluations."""
    loader_workers: int | None = None
    """Threads of a run that read stored data ahead; 0: the run reads them itself. None: as many as
    the launcher has cores for, or none without a launcher."""
    batch_runs: int | None = None
    """How many runs are trained together at most, as one program; None: as many as pay."""
    crowds: frozenset[Kind] = frozenset()
    """The kinds of which there are so many that it pays on a CPU, whoever is still to be trained."""
    device_share: float = 1.0
    """The part of its device that a worker has for itself."""


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


def crowds(specs: Iterable[RunSpec], at_hand: float = math.inf) -> frozenset[Kind]:
    """The kinds with at least `CROWD` runs, if a launcher can have that many at hand."""
    counts = Counter(spec.kind for spec in specs)
    return frozenset(kind for kind, count in counts.items() if min(count, at_hand) >= CROWD)


@dataclass(frozen=True)
class Job:
    """Some runs of a sweep, and by what they are to be trained."""

    name: str
    """The sweep's."""
    results: Results
    specs: Specs
    """All runs of the sweep; those that a search chooses are added while it is trained."""
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
    studies: tuple[Study, ...] = ()
    """The searches that choose further runs as these end."""

    @property
    def total(self) -> int:
        """How many runs the sweep has in the end."""
        return sum(study.total for study in self.studies) or len(self.specs)

    @property
    def at_once(self) -> int:
        """How many workers it has use for."""
        return self.workers if self.studies else min(self.workers, len(self.ids))

    def add(self, specs: Specs) -> tuple[str, ...]:
        """Take in runs that a search has chosen; returns those that were not known."""
        new = tuple(i for i in specs if i not in self.specs)
        self.specs.update(specs)
        return new

    def searches(self) -> Searches:
        """The searches, as far as the disk says they are."""
        return Searches(self.results, self.studies)

    def settings_of(self, worker: int) -> Settings:
        """The settings of a worker's runs: on its device, with its share of the cores to read data."""
        share = len(os.sched_getaffinity(0)) // max(1, self.at_once)
        loaders = self.settings.loader_workers
        return replace(
            self.settings,
            device=self.devices[worker % len(self.devices)],
            loader_workers=max(1, share) if loaders is None else loaders,
            device_share=1 / -(-self.at_once // max(1, len(self.gpus or self.devices))),
        )
