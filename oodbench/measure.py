"""Our numbers beside the targets': read off sweeps, or computed. Imports no torch."""

import json
import math
from collections.abc import Mapping, Sequence
from importlib import import_module

import numpy as np
import pandas as pd
from pydantic import BaseModel

from oodbench.errors import UserError
from oodbench.records import Frames
from oodbench.selection import ENDED, choose, sweep_runs
from oodbench.targets import LAST, Experiment, Target


class Line(BaseModel):
    """A curve, or points, of a panel."""

    label: str
    x: list[float]
    y: list[float]
    error: list[float] | None = None
    """Half the height of a band, or of a point's bar."""
    points: bool = False
    dx: list[float] | None = None
    dy: list[float] | None = None
    """With `dx`: arrows that start at (x, y)."""


class Panel(BaseModel):
    """A picture's part."""

    title: str
    x: str
    """The axis."""
    y: str
    lines: list[Line]
    rows: list[str] = []
    """Names of y = 0, -1, ...; the errors are then of x."""


class Measured(BaseModel):
    """What one experiment gave."""

    values: dict[str, list[float]]
    """A value for each trial, by the target's key (of a computation: by the target's row)."""
    panels: list[Panel] = []
    provenance: dict[str, list[str]] = {}
    """Protocols, code, data, libraries: what the numbers come from."""

    def text(self) -> str:
        """As JSON, with a line for each target and panel."""
        values = [f"  {json.dumps(key)}: {json.dumps(v)}" for key, v in self.values.items()]
        panels = [f"  {panel.model_dump_json(exclude_defaults=True)}" for panel in self.panels]
        sources = [f"  {json.dumps(key)}: {json.dumps(v)}" for key, v in self.provenance.items()]
        lists = {"values": ("{}", values), "panels": ("[]", panels), "provenance": ("{}", sources)}
        parts = [
            f' "{name}": {ends[0]}\n' + ",\n".join(lines) + f"\n {ends[1]}"
            for name, (ends, lines) in lists.items()
        ]
        return "{\n" + ",\n".join(parts) + "\n}\n"


def measure(experiment: Experiment, frames: Mapping[str, Frames], trials: int) -> Measured:
    """Our number of every target that there is one for; `frames` holds the sweeps that have results."""
    values, panels = {}, []
    if experiment.compute is not None:
        computed = _compute(experiment.compute, trials, frames)
        panels = computed.panels
        for target in experiment.targets:
            if not target.sweep and target.row in computed.values:
                values[target.key] = _scaled(computed.values[target.row], target)
    for target in experiment.targets:
        if target.sweep in frames:
            values[target.key] = _scaled(read(target, frames[target.sweep]), target)
    if experiment.picture == "steps":
        panels = [*panels, *_curves(experiment, frames)]
    return Measured(values=values, panels=panels)


def _scaled(values: Sequence[float], target: Target) -> list[float]:
    """In the source's unit, without round-off."""
    return [float(f"{target.scale * value:.10g}") for value in values]


def _compute(path: str, trials: int, frames: Mapping[str, Frames]) -> Measured:
    module, _, function = path.partition(":")
    found = getattr(import_module(module), function)(trials, frames)
    assert isinstance(found, Measured)
    return found


def read(target: Target, frames: Frames) -> list[float]:
    """A value for each trial whose runs have all ended, in the order of the trials.

    Raises UserError if the sweep has no such row, environment or metric, or cannot serve the
    selection.
    """
    chosen = _chosen(target, frames, _runs(target, frames))
    metrics = frames.metrics[frames.metrics["metric"] == target.metric]
    found = metrics.merge(chosen, on=["id", "step"])
    if target.environment is None:
        found = found[found["environment"].isna()]
    else:
        found = found[(found["split"] == target.split) & _there(target.environment, found)]
    if found.empty and not chosen.empty:
        raise UserError(
            f"no '{target.metric}' of environment '{target.environment}' ({target.split}) is "
            f"recorded for {target.row} of {target.sweep}"
        )
    runs = found.groupby(["trial", "id"], observed=True)["value"].mean()
    return [float(v) for v in runs.groupby("trial").mean()]


def _runs(target: Target, frames: Frames) -> pd.DataFrame:
    """The runs of a target's row."""
    runs = sweep_runs(frames)
    mine = runs["label"] == target.row
    if target.dataset is not None:
        mine &= runs["dataset_label"] == target.dataset
    if target.test_environments is not None:
        mine &= runs["test_environments"].map(tuple) == target.test_environments
    if not mine.any():
        raise UserError(f"no run of {target.sweep} is that of the target {target.key}")
    if runs.loc[mine, "dataset_label"].nunique() > 1:
        raise UserError(f"{target.sweep} has several datasets: the target {target.key} names none")
    return runs[mine & ~runs["helper"]]


def _chosen(target: Target, frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """`id`, `step`, `trial`, `training`, `tests` of the runs of the trials that are complete."""
    if target.selection == LAST:
        if runs["draw"].nunique() > 1:
            raise UserError(
                f"{target.sweep} has several hparam draws: {target.key} must select one"
            )
        steps = frames.metrics[["id", "step"]].drop_duplicates()
        if target.step is not None:
            steps = steps[steps["step"] <= target.step]
        last = steps.groupby("id", observed=True)["step"].max().reset_index()
        chosen = runs[runs["state"].isin(ENDED)][["id", "trial"]].merge(last, on="id")
    else:
        chosen = choose(frames, target.selection)[["id", "trial", "step"]]
        chosen = chosen[chosen["id"].isin(runs["id"])]
    sets = runs["test_environments"].nunique()
    whole = chosen.groupby("trial")["id"].transform("size") == sets
    names = runs[["id", "training_environments", "test_environments"]]
    return chosen[whole].merge(names, on="id")


def _there(environment: str, found: pd.DataFrame) -> pd.Series:
    """Which rows are of the environment that is meant."""
    if environment in ("training", "test"):
        column = f"{environment}_environments"
        own = zip(found["environment"], found[column], strict=True)
        return pd.Series([name in names for name, names in own], found.index, dtype=bool)
    return found["environment"] == environment


def _curves(experiment: Experiment, frames: Mapping[str, Frames]) -> list[Panel]:
    """A panel for each environment and metric of the targets, a line over the steps for each row."""
    panels: dict[tuple[str | None, ...], Panel] = {}
    for target in experiment.targets:
        if target.sweep not in frames:
            continue
        place = (target.dataset, target.environment, target.split, target.metric)
        title = f"{target.environment or 'predictor'}"
        title += f" ({target.dataset})" if target.dataset else ""
        panel = panels.setdefault(place, Panel(title=title, x="step", y=target.metric, lines=[]))
        recorded = frames[target.sweep]
        ids = set(_runs(target, recorded)["id"])
        steps = recorded.metrics.loc[recorded.metrics["id"].isin(ids), "step"]
        several = len(experiment.sweeps) > 1
        label = f"{target.row}, {target.sweep}" if several else target.row
        line = Line(label=label, x=[], y=[], error=[])
        if label in {known.label for known in panel.lines}:
            continue
        for step in sorted(set(steps)):
            values = read(target.model_copy(update={"selection": LAST, "step": step}), recorded)
            if values:
                mean, error = mean_and_error(_scaled(values, target))
                line.x.append(float(step))
                line.y.append(mean)
                line.error = [*(line.error or []), 0.0 if math.isnan(error) else error]
        if line.x:
            panel.lines.append(line)
    return [panel for panel in panels.values() if panel.lines]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error (ddof 1; NaN for one value)."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan
    return mean, float(np.std(values, ddof=1)) / math.sqrt(len(values))
