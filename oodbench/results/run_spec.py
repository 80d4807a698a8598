"""A run's spec (everything that its numbers depend on) and its state."""

import hashlib
import json
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from oodbench.arithmetic import PORTABLE

DIWA = "diwa"
"""The name of the average over the weights of several runs, see `oodbench.train.diwa`."""
BEFORE = " (before)"
"""The suffix of metrics before adaptation, in the records of a run that adapts."""
SCORE = "score"
"""The split of a board's records of validation scores, whose metric is the selection rule."""
TRAIN = "train"
"""The split of means over the steps since the last evaluation, such as the training loss."""
MISLABELED, MEMORIZED = "mislabeled", "memorized"
"""The split of training examples with a wrong label, and its metric: the share predicted as labelled."""
CONSTANT, OVERALL = "constant", "all datasets"
"""The label of the constant answer, and the dataset of what is over all datasets, in tables."""
FILES = ("weights", "file")
"""The hyperparameters and options that name a file; ids contain its `sha256` instead, if known."""


class State(StrEnum):
    """The state of a run, from plan to end."""

    PLANNED = "planned"
    QUEUED = "queued"
    """A cluster will train it."""
    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"
    """A loss was not finite; the records until then count."""
    FAILED = "failed"
    """An error ended the run."""
    BROKEN = "broken"
    """The run's files contradict each other or its spec; tables leave it out."""
    LOST = "lost"
    """The run was started and has not ended, but no process trains it."""
    INTERRUPTED = "interrupted"
    """A launcher was asked to stop, and saved a checkpoint of the run's last step."""
    ELSEWHERE = "elsewhere"
    """Another process trains the run."""

    @property
    def complete(self) -> bool:
        """Whether tables count the run."""
        return self in (State.DONE, State.DIVERGED)

    @property
    def final(self) -> bool:
        """Whether `launch` leaves the run alone (with --failed, only complete runs)."""
        return self.complete or self in (State.FAILED, State.BROKEN)

    @property
    def at_rest(self) -> bool:
        """Whether the run was started, and no process or job is training it or will."""
        return self.final or self is State.LOST

    @property
    def can_be_retried(self) -> bool:
        """Whether `launch --failed` trains the run again."""
        return self.at_rest and not self.complete


@dataclass(frozen=True)
class RunStatus:
    """A run's state, with a note on the state."""

    state: State
    note: str = ""
    log: Path | None = None
    """The output of the run's last job on a cluster, if there is any."""


COMPLETE = tuple(state for state in State if state.complete)
"""The states of runs that count in tables."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run: everything that its numbers depend on."""

    dataset: str
    options: dict[str, Any] = field(default_factory=dict)
    algorithm: str
    hparams: dict[str, Any]
    label: str = field(compare=False)
    """The row of the table, by default the algorithm's name. It is not part of the id, because a run may
    belong to several rows, and rows may be renamed."""
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
    """Which weights are evaluated: the `name` of an average over steps and its options (see
    `oodbench.train.averages`), DIWA and the averaged runs, or None for the last step's weights."""
    adapt: dict[str, Any] | None = field(default=None, metadata={"later": True})
    """How the trained predictor adapts to the inputs of each evaluation: the `name` of an adaptation and
    its hyperparameters (see `oodbench.adaptations`), or None. Training does not depend on it."""
    noise: dict[str, Any] | None = field(default=None, metadata={"later": True})
    """Noise in the labels or targets of all but the test environments, see `oodbench.data.noise`."""
    test_order: str = field(default="stored", metadata={"later": True})
    """The order in which a transductive method sees the inputs of an evaluation: `random`, which depends on
    the trial (see `oodbench.train.adapted`), or `stored` for other methods and for runs before 0.4.0."""
    precision: str = field(default="float32", metadata={"later": True, "option": True})
    """`float32`, `tf32` or `bfloat16`, see `oodbench.train.process`."""
    channels_last: bool = field(default=False, metadata={"later": True, "option": True})
    """Whether images and the weights of convolutions have torch's memory format `channels_last`."""
    arithmetic: str = field(default=PORTABLE, metadata={"later": True, "option": True})
    """`portable` or `native`, see `oodbench.arithmetic`."""
    dataset_label: str = field(default="", compare=False)
    """The dataset's name in tables; not in the id."""
    ceiling: bool = field(default=False, compare=False)
    """Whether the row is a ceiling, which shows what could be reached, and is not ranked; not in the id."""
    transductive: bool = field(default=False, compare=False)
    """Whether predictions depend on other test inputs, so that the row is ranked apart; not in the id."""
    reference: bool = field(default=False, compare=False)
    """Whether the row is a reference, which is not ranked; not in the id."""

    @property
    def dataset_name(self) -> str:
        """The dataset's name in all output: its label, or its registered name without one."""
        return self.dataset_label or self.dataset

    @property
    def row(self) -> str:
        """The row of tables that the run belongs to, as `LABEL on DATASET`."""
        return f"{self.label} on {self.dataset_name}"

    @cached_property
    def id(self) -> str:
        """A hash of the compared fields; it does not depend on the machine or the version of the code.

        A file of weights or features enters by its SHA-256 if these values also have `sha256` (a plan
        adds it for timm and for features), else by its path as given. A field that was added in a later
        version (see its metadata) is hashed only if it is not at its default, so that ids of earlier runs
        stay the same.
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
        """The values of the fields that determine a run's data and batches."""
        return self.trial, self.test_environments, self.validation_environments

    @property
    def bundle_key(self) -> tuple[str, ...]:
        """The values of the fields in which runs must agree to be vectorized together, as a bundle.

        They may differ in test environments, trial, draw, label, adaptation and numeric hyperparameters. A
        method that changes its objective at a share of the steps does so at the same step in all of them.
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
        """The planned steps of evaluations up to `step`, by default all of them."""
        last = self.steps if step is None else min(step, self.steps)
        regular = list(range(self.interval, last + 1, self.interval))
        return regular + [last] * (last == self.steps and last not in regular)

    @property
    def interval(self) -> int:
        """The steps between evaluations; a reference is fitted at once, so it has one interval."""
        return self.steps if self.reference else self.evaluate_every


COMPARED = [f.name for f in fields(RunSpec) if f.compare]
"""The fields that determine the id."""
LATER = {f.name: f.default for f in fields(RunSpec) if f.metadata.get("later")}
"""The fields that earlier versions lacked, with the values that describe those versions' runs."""
OPTIONS = {f.name: f.default for f in fields(RunSpec) if f.metadata.get("option")}
"""The fields that a sweep file sets by a key of the same name, with their defaults. A new option of a run
needs such a field, the key in `oodbench.sweep.file.Sweep`, and its use in `oodbench.train`."""


@dataclass(frozen=True)
class Evaluation:
    """A metric on an (environment, split) pair; both are None for a metric of the predictor itself."""

    environment: str | None
    split: str | None
    metric: str
    value: float
    count: int
