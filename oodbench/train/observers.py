"""Observers follow runs while they are trained, as clients of wandb or TensorBoard do."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch

from oodbench import blame
from oodbench.errors import MissingError
from oodbench.registry import Registry
from oodbench.results.run_spec import RunSpec, State
from oodbench.train.process import generator_states, set_generator_states

observers: Registry[type["Observer"]] = Registry(
    "observer", "oodbench.observers", "oodbench.train.trackers"
)


def register(name: str) -> Callable[[type["Observer"]], type["Observer"]]:
    """Register an observer under the name that users give to `--observe`."""
    return observers.add(name)


class Observer:
    """Base class of observers, one instance per run; subclasses define the methods that they need.

    An exception in an observer becomes a warning, and the observer is not called again for the run.
    """

    package: ClassVar[str] = ""
    """The package that it imports, if any; for those of this package, an extra has the observer's name."""

    def started(self, spec: RunSpec, step: int) -> None:
        """Called when the run begins; `step` is above 0 if it resumes from a checkpoint.

        A MissingError, as for an account, is said once, and the process's later runs have no such observer.
        """

    def evaluated(self, record: Mapping[str, Any]) -> None:
        """Called with each line of metrics.jsonl, as the guide's page on results describes it."""

    def ended(self, state: State, message: str) -> None:
        """Called when the run ends: done, diverged, interrupted or, with a sentence, failed."""


_useless: set[type[Observer]] = set()  # what they lack has been said in this process


class Observers:
    """The observers of one run; they cannot change it, nor make it fail."""

    def __init__(self, names: Iterable[str], spec: RunSpec) -> None:
        """Look up observers by name; raises UserError for an unknown one."""
        self._run = f"{spec.label} on {spec.dataset_name} ({spec.id})"
        self._makers = {name: observers.get(name) for name in names}
        self._made: dict[str, Observer] = {}

    def tell(self, event: str, *about: object) -> None:
        """Call the method `event` of each observer that has not failed yet."""
        if not self._makers:
            return
        # an observer may draw random numbers without changing the run's
        states = generator_states()
        cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        devices = range(torch.cuda.device_count()) if cuda else ()
        with torch.random.fork_rng(devices):
            self._tell(event, *about)
        set_generator_states(states)

    def _tell(self, event: str, *about: object) -> None:
        for name, maker in list(self._makers.items()):
            if maker in _useless:
                continue
            try:
                if name not in self._made:
                    self._made[name] = maker()
                getattr(self._made[name], event)(*about)
            except MissingError as error:
                _useless.add(maker)
                warnings.warn(f"{error}; the runs go on without it", stacklevel=3)
            except Exception as error:
                del self._makers[name]
                what = blame.described(error)
                warnings.warn(f"{self._run} is no longer told to {name}: {what}", stacklevel=3)
