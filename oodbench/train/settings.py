"""How one process trains runs, and what may be asked of it meanwhile. Imports no torch."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oodbench.results.run_spec import RunSpec

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
