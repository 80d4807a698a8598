"""What a run is, by all that its numbers depend on, and what is recorded of it. Imports no torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training, by everything that its numbers depend on."""

    dataset: str
    options: dict[str, Any] = field(default_factory=dict)
    algorithm: str
    hparams: dict[str, Any]
    label: str
    """The row of the table; the algorithm's name unless the sweep gives another."""
    network: str
    network_hparams: dict[str, Any]
    test_environments: tuple[str, ...]
    validation_environments: tuple[str, ...] = ()
    draw: int
    trial: int
    steps: int
    evaluate_every: int
    holdout: float = 0.2

    @property
    def id(self) -> str:
        """A hash of the values: no path, host or code version."""
        text = json.dumps(asdict(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def group_key(self) -> tuple[str, ...]:
        """What runs that may be vectorized together have in common: all that is no number to try.

        Runs of a group differ in trial, draw, steps, label and in numbers among the hyperparameters.
        """
        fixed = {
            name: value
            for name, value in self.hparams.items()
            if name in ("batch_size", "environments_per_step")
            or isinstance(value, bool | str | None)
        }
        shared = (self.options, fixed, self.network_hparams, self.test_environments, self.holdout)
        names = (self.dataset, self.algorithm, self.network, str(len(self.validation_environments)))
        return *names, *(json.dumps(value, sort_keys=True) for value in shared)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RunSpec":
        """The spec that `asdict` and JSON made `values` of."""
        tuples = ("test_environments", "validation_environments")
        fields: dict[str, Any] = {k: tuple(v) if k in tuples else v for k, v in values.items()}
        return cls(**fields)


@dataclass(frozen=True)
class Evaluation:
    """One metric of one (environment, split); both None for a metric of the predictor itself."""

    environment: str | None
    split: str | None
    metric: str
    value: float
    count: int
