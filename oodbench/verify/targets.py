"""Targets: the numbers that papers print, as validated data.

A file oodbench/verify/papers/<experiment>.yaml has the printed numbers of an experiment, the sweeps or the
computation behind our numbers, and how our numbers are read from the results.
"""

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from oodbench.errors import UserError, unknown
from oodbench.selection import rule_names
from oodbench.validation import parse
from oodbench.yaml_values import read_yaml

FOLDER = Path(__file__).parent / "papers"
Values = dict[str, list[float]]
"""A computation's values for each trial, by `Target.row`."""

ErrorKind = Literal[
    "none",
    "one run",
    "std",
    "population std",
    "stderr",
    "population stderr",
    "constant",
    "tolerance",
    "at least",
    "at most",
]
SPREADS = ("std", "population std", "population stderr")
"""Kinds of errors that become standard errors by the number of trials."""
LAST = "last"
"""The selection of the last step."""
ORACLE_LAST = "oracle_last"
"""The selection of the draw that is best on the test environment at the last step (arXiv:2007.01434)."""


class Target(BaseModel):
    """A printed number, how the source computed it, and how our number is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sweep: str = ""
    """The sweep of our values, by default the experiment's only sweep."""
    environment: str | None = None
    """A name; `training` or `test`, the mean over these environments; or None, for a metric of the
    predictor itself."""
    split: Literal["in", "out"] = "in"
    metric: str = "accuracy"
    scale: float = 1.0
    """The factor from our recorded value to the source's unit."""
    source: str = Field(min_length=1)
    """The paper's table, figure or file."""
    row: str
    """The row's label in the sweep, or the key of our value in the computation's values."""
    dataset: str | None = None
    """The dataset's label, if the sweep has several; the file may give a short name."""
    test_environments: tuple[str, ...] | None = None
    """The run's test environments; None: the mean over all test sets of the dataset."""
    selection: str = LAST
    """How our number is selected: `last`, `oracle_last` or a selection rule."""
    step: int | None = None
    """The step for `last`; None: the run's last step."""
    value: float
    error: float = Field(default=0.0, ge=0)
    error_is: ErrorKind = "none"
    """What the source prints after ±, or else: `one run`, which is assumed to vary like our runs;
    `constant`, all repetitions have the value; `tolerance`, the value is exact and ours may differ by
    `error` (with `trials`, there is a verdict only for as many trials of ours); `at least` and `at most`,
    the value is a bound."""
    trials: int | None = Field(default=None, ge=1)
    """The number of repetitions behind the source's error."""
    source_selection: str = ""
    """How the source selected the printed run, in words."""
    tuned_on_test: bool = False
    """Whether the authors chose hyperparameters by the printed number."""
    reproducible: bool = True
    """Whether it is an error to miss the target; if not, `note` says why."""
    note: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> "Target":
        known = (LAST, ORACLE_LAST, *rule_names())
        if self.selection not in known:
            raise unknown("selection", self.selection, known, f"the target of {self.row}")
        if self.error_is in (*SPREADS, "constant") and (self.trials or 0) < 2:
            raise ValueError(f"the {self.error_is} of {self.row} needs `trials`, at least 2")
        if not self.reproducible and not self.note:
            raise ValueError(f"{self.row} is not reproducible: say why in `note`")
        return self

    @property
    def stderr(self) -> float:
        """The standard error of the source's value; 0 if the source prints no error."""
        n = self.trials or 1
        factors = {
            "std": 1 / n,
            "population std": 1 / max(1, n - 1),
            "stderr": 1,
            "population stderr": n / max(1, n - 1),
        }
        return self.error * math.sqrt(factors.get(self.error_is, 0))

    @property
    def allowed(self) -> tuple[float, float] | None:
        """The least and the greatest difference that agrees; None if standard errors decide."""
        return {
            "tolerance": (-self.error, self.error),
            "at least": (0.0, math.inf),
            "at most": (-math.inf, 0.0),
        }.get(self.error_is)

    @property
    def key(self) -> str:
        """A text that identifies the target within its experiment."""
        where = (self.environment, self.split if self.environment else None)
        tests = None if self.test_environments is None else "+".join(self.test_environments)
        fields = (self.source, self.sweep, self.row, self.dataset, tests, *where, self.metric)
        return "|".join(str(f) for f in (*fields, self.selection, self.step) if f not in (None, ""))


class Experiment(BaseModel):
    """A paper's printed numbers, and the sweeps or the computation behind ours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    paper: str
    cheap: bool = False
    """Whether it takes at most a few minutes on two cores."""
    sweeps: tuple[str, ...] = ()
    """The sweeps' names, as `sweep launch` takes them."""
    keep_predictions: bool = False
    """Whether the computation reads the runs' predictions."""
    datasets: dict[str, str] = {}
    """Short names of the targets' datasets."""
    compute: str | None = None
    """A computation in `oodbench.verify.computations`, by name."""
    trials: int = Field(default=10, ge=1)
    """The default number of trials of the computation."""
    about: str
    """What the paper does and what we do, in Markdown."""
    deviations: tuple[str, ...] = ()
    shared: dict[str, Any] = {}
    """Defaults of the targets' fields."""
    targets: tuple[Target, ...] = Field(min_length=1)


def load_experiment(name: str) -> Experiment:
    """The experiment `name`; raises UserError for an unknown name or an invalid file."""
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise unknown("experiment", name, experiment_names())
    values = read_yaml(path)
    if not isinstance(values, dict) or not isinstance(values.get("targets"), list):
        raise UserError(f"{path} must hold keys and values, `targets` (a list) among them")
    only = values["sweeps"][0] if len(values.get("sweeps", ())) == 1 else ""
    usual = {"sweep": "" if "compute" in values else only, **values.get("shared", {})}
    names = values.get("datasets", {})
    targets = [{**usual, **target} for target in values["targets"]]
    values["targets"] = [
        t | {"dataset": names.get(t.get("dataset"), t.get("dataset"))} for t in targets
    ]
    experiment = parse(Experiment, {"name": name, **values}, str(path))
    for target in experiment.targets:
        if target.sweep and target.sweep not in experiment.sweeps:
            raise unknown("sweep", target.sweep, experiment.sweeps, str(path))
        if not target.sweep and experiment.compute is None:
            raise UserError(f"{path}: the target of {target.row} names no sweep")
    if len({target.key for target in experiment.targets}) < len(experiment.targets):
        raise UserError(f"{path}: two targets have the same key")
    return experiment


def experiment_names() -> list[str]:
    """The names of all experiments, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))
