"""A run's spec (all that its numbers depend on), its state, and its records."""

import hashlib
import json
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

from oodbench.arithmetic import PORTABLE

DIWA = "diwa"
"""The name of an average over runs, see `oodbench.train.diwa`."""
BEFORE = " (before)"
"""The end of the names of metrics before adaptation, in the records of a run that adapts."""
SCORE = "score"
"""The split of a board's records of validation scores, whose metric is the selection rule."""
TRAIN = "train"
"""The split of means over the steps since the record before, such as the loss."""
MISLABELED, MEMORIZED = "mislabeled", "memorized"
"""The examples that a run trains on with a wrong label, and the metric: the share predicted as labelled."""
CONSTANT = "constant"
"""The row of the constant answer in tables; no row of a sweep may be called so."""
FILES = ("weights", "file")
"""The hyperparameters and options that name a file, which counts by its `sha256` where that is known."""


class State(StrEnum):
    """State of a run from plan to end; launchers return it too."""

    PLANNED = "planned"
    QUEUED = "queued"
    """A cluster will train it."""
    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"
    """A loss was not finite; the run counts with the records that it has."""
    FAILED = "failed"
    """An error ended the run."""
    BROKEN = "broken"
    """The run's files contradict each other or its spec: it counts nowhere."""
    LOST = "lost"
    """The run was started and has not ended, and no process has it."""
    INTERRUPTED = "interrupted"
    """A launcher was asked to stop; the run has a checkpoint of its last step."""
    ELSEWHERE = "elsewhere"
    """Another process trains the run."""

    @property
    def complete(self) -> bool:
        """Whether tables count the run."""
        return self in (State.DONE, State.DIVERGED)

    @property
    def final(self) -> bool:
        """Whether `launch` leaves the run alone unless --failed has what is not complete trained again."""
        return self.complete or self in (State.FAILED, State.BROKEN)

    @property
    def at_rest(self) -> bool:
        """Whether the run was started, and no process or job trains it or will."""
        return self.final or self is State.LOST

    @property
    def can_be_retried(self) -> bool:
        """Whether `launch --failed` trains the run again."""
        return self.at_rest and not self.complete


COMPLETE = tuple(state for state in State if state.complete)
"""The states of runs that tables count."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run: everything that its numbers depend on."""

    dataset: str
    options: dict[str, Any] = field(default_factory=dict)
    algorithm: str
    hparams: dict[str, Any]
    label: str = field(compare=False)
    """The row of the table; the algorithm's name unless the sweep gives another. A run may stand in several
    rows, and a row may be renamed: the label is not part of the id."""
    network: str
    network_hparams: dict[str, Any]
    test_environments: tuple[str, ...]
    validation_environments: tuple[str, ...] = ()
    draw: int
    trial: int
    steps: int
    evaluate_every: int
    holdout: float = 0.2
    average: dict[str, Any] | None = field(default=None, metadata={"later": True})
    """Which weights are evaluated: the `name` of an average over steps with its numbers (see
    `oodbench.train.averages`), DIWA with the runs that it is of, or None: the last ones."""
    adapt: dict[str, Any] | None = field(default=None, metadata={"later": True})
    """How the trained predictor adapts to the inputs of each evaluation: the `name` of an adaptation with
    its hyperparameters (see `oodbench.adaptations`), or None. No update depends on it."""
    noise: dict[str, Any] | None = field(default=None, metadata={"later": True})
    """Noise in the labels or targets of all but the test environments, see `oodbench.data.noise`."""
    test_order: str = field(default="stored", metadata={"later": True})
    """The order in which a transductive method sees the inputs of an evaluation: `random`, drawn by the
    trial (see `oodbench.train.adapted`); `stored` of other methods, and of runs of before 0.4.0."""
    precision: str = field(default="float32", metadata={"later": True, "option": True})
    """`float32`, `tf32` or `bfloat16`, see `oodbench.train.process`."""
    channels_last: bool = field(default=False, metadata={"later": True, "option": True})
    """Whether images and the weights of convolutions lie in memory with their channels side by side."""
    arithmetic: str = field(default=PORTABLE, metadata={"later": True, "option": True})
    """`portable` or `native`, see `oodbench.arithmetic`."""
    dataset_label: str = field(default="", compare=False)
    """The dataset as tables call it; no number depends on it, and neither does the id."""
    ceiling: bool = field(default=False, compare=False)
    """Whether the run's row shows what could be reached, and is not ranked; not part of the id either."""
    transductive: bool = field(default=False, compare=False)
    """Whether predictions depend on test inputs, so that it is ranked apart; not part of the id either."""
    reference: bool = field(default=False, compare=False)
    """Whether the row is a method of another kind, which is not ranked; not part of the id either."""

    @property
    def dataset_name(self) -> str:
        """The dataset's name in all output: its label, or its registered name without one."""
        return self.dataset_label or self.dataset

    @cached_property
    def id(self) -> str:
        """A hash of the fields' values, which hold no host, no code version and no path but the user's own.

        Fields that are not compared are not hashed. A file of weights, the network's or the dataset's,
        or of features counts by its SHA-256 alone where a `sha256` stands beside it (a plan sets it for
        timm and for features), else by its path as it was given. A field that was added later (its
        metadata say so) is hashed only where it is not at its default, which is what runs did before the
        field existed.
        """
        own = vars(self)
        values = {n: own[n] for n in COMPARED if n not in LATER or own[n] != LATER[n]}
        for key in ("network_hparams", "options"):
            if values[key].get("sha256"):
                values[key] = {k: v for k, v in values[key].items() if k not in FILES}
        text = json.dumps(values, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def held_out(self) -> frozenset[str]:
        """Environments excluded from training."""
        return frozenset({*self.test_environments, *self.validation_environments})

    @property
    def data_key(self) -> tuple[object, ...]:
        """Key of the fields on which the data and batches of a bundle's runs depend."""
        return self.trial, self.test_environments, self.validation_environments

    @property
    def bundle_key(self) -> tuple[str, ...]:
        """Key of the fields that the runs of a bundle share, so that they may be vectorized together.

        The runs of a bundle differ in test environments, trial, draw, label, adaptation and numeric
        hyperparameters; what a method switches at a share of the steps is the same step for all.
        """
        fixed = {
            name: value
            for name, value in self.hparams.items()
            if name in ("batch_size", "environments_per_step")
            or isinstance(value, bool | str | None)
        }
        held_out = len(self.test_environments), len(self.validation_environments)
        shared = [self.options, fixed, self.network_hparams, held_out, self.holdout]
        shared += [self.steps, self.average, self.noise, self.test_order]
        shared += [getattr(self, name) for name in OPTIONS]
        names = (self.dataset, self.algorithm, self.network)
        return *names, *(json.dumps(value, sort_keys=True) for value in shared)

    def due(self, step: int | None = None) -> list[int]:
        """The steps of evaluations up to `step` or the end, without that where a run diverged."""
        last = self.steps if step is None else min(step, self.steps)
        regular = list(range(self.interval, last + 1, self.interval))
        return regular + [last] * (last == self.steps and last not in regular)

    @property
    def interval(self) -> int:
        """The steps between evaluations; all of a reference's, which is fitted at once."""
        return self.steps if self.reference else self.evaluate_every


COMPARED = [f.name for f in fields(RunSpec) if f.compare]
"""The fields that are part of the id."""
LATER = {f.name: f.default for f in fields(RunSpec) if f.metadata.get("later")}
"""The fields that earlier versions did not have, with what runs did then."""
OPTIONS = {f.name: f.default for f in fields(RunSpec) if f.metadata.get("option")}
"""The fields that a sweep file sets by a key of the same name, with their defaults: a new option of a
run is such a field, the key in `oodbench.sweep.file.Sweep`, and what it does in `oodbench.train`."""


@dataclass(frozen=True)
class Evaluation:
    """One metric of one (environment, split); both None for a metric of the predictor itself."""

    environment: str | None
    split: str | None
    metric: str
    value: float
    count: int
