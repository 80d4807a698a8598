"""The settings with which a process trains runs, and the requests that it takes meanwhile."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oodbench.results.run_spec import RunSpec

BundleKey = tuple[str, ...]
"""The key that the runs of a bundle share, see `RunSpec.bundle_key`."""
MAX_VECTORIZED = 64
"""The most runs that are trained as one program unless the user gives a number: more gain little."""
MIN_TO_VECTORIZE = 16
"""The fewest runs of a bundle that are vectorized on a CPU, where fewer gain nothing."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How runs are executed; none of it changes what they compute, up to round-off."""

    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()
    keep_predictions: bool = False
    """Whether every example's logits are kept at the evaluations."""
    keep_weights: tuple[str, ...] = ()
    """The selection rules whose weights are kept, and `last`, see `oodbench.train.kept_weights`."""
    keep_checkpoints: bool = False
    """Whether a run keeps its checkpoint when it has ended."""
    scratch: bool = False
    """Whether the results are discarded, so that no digests of data files are needed."""
    loader_workers: int | None = None
    """Threads of a run that read stored data ahead; 0: the run reads them itself. None: as many as
    the launcher has cores for, or none without a launcher."""
    vectorize: int | None = None
    """The most runs that are trained as one program; None: as many as pay."""
    large_bundles: frozenset[BundleKey] = frozenset()
    """The bundles that are vectorized on a CPU, see the function `large_bundles`."""
    device_share: float = 1.0
    """The fraction of the device's memory for each worker."""

    run_timeout: float | None = None
    """Seconds after which a process ends whose run has not, and the run counts as failed; with it
    those that are vectorized together. None: never."""

    def why_alone(self, bundle: BundleKey) -> str | None:
        """The setting for which the runs of a bundle are trained one at a time, or None.

        Reasons in the runs themselves are in `oodbench.train.vectorized.bundles`.
        """
        if self.vectorize == 1:
            return "--vectorize is 1"
        if self.vectorize is None and self.device == "cpu" and bundle not in self.large_bundles:
            return f"fewer than {MIN_TO_VECTORIZE} runs differ in numbers alone"
        return None


@dataclass
class Interrupts:
    """Requests to the run being trained, made by signals; it looks at them every second or step."""

    save: bool = False
    stop: bool = False

    def ask_to_save(self) -> None:
        """Have a checkpoint written soon."""
        self.save = True

    def ask_to_stop(self) -> None:
        """Have a checkpoint written soon, and the training end there."""
        self.stop = True


def large_bundles(specs: Iterable[RunSpec], at_hand: float = math.inf) -> frozenset[BundleKey]:
    """The bundles with at least `MIN_TO_VECTORIZE` runs in a whole sweep, given all its `specs`.

    On a CPU their runs are always vectorized, even when few are left to train, so that a resumed
    sweep gives the same bits. `at_hand` is the most runs that one process may be given at once;
    below the minimum there are no large bundles.
    """
    counts = Counter(spec.bundle_key for spec in specs)
    return frozenset(
        bundle for bundle, count in counts.items() if min(count, at_hand) >= MIN_TO_VECTORIZE
    )
