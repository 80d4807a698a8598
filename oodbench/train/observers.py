"""Observers follow runs while they are trained, as clients of wandb or TensorBoard do."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from oodbench import blame
from oodbench.registry import Registry
from oodbench.results.run_spec import RunSpec, State
from oodbench.train.process import generator_states, set_generator_states

observers: Registry[type["Observer"]] = Registry(
    "observer", "oodbench.observers", "oodbench.train.observers"
)


def register(name: str) -> Callable[[type["Observer"]], type["Observer"]]:
    """Register an observer under the name that users give to `--observe`."""
    return observers.add(name)


class Observer:
    """Base class of observers, one instance per run; subclasses define the methods that they need.

    An exception in an observer becomes a warning, and the observer is not called again for the run.
    """

    def started(self, spec: RunSpec, step: int) -> None:
        """Called when the run begins; `step` is above 0 if it resumes from a checkpoint."""

    def evaluated(self, record: Mapping[str, Any]) -> None:
        """Called with each line of metrics.jsonl, as the guide's page on results describes it."""

    def ended(self, state: State, message: str) -> None:
        """Called when the run ends: done, diverged, interrupted or, with a sentence, failed."""


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
            try:
                if name not in self._made:
                    self._made[name] = maker()
                getattr(self._made[name], event)(*about)
            except Exception as error:
                del self._makers[name]
                what = blame.described(error)
                warnings.warn(f"{self._run} is no longer told to {name}: {what}", stacklevel=3)
