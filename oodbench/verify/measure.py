"""An experiment's numbers of ours: read off its sweeps, or computed. Imports no torch."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from oodbench.report.statistics import mean_and_error, plain_mean
from oodbench.results.frames import Frames
from oodbench.verify.computations import find_computation
from oodbench.verify.measured import Line, Measured, Panel
from oodbench.verify.readings import (
    at_the_end,
    ended_runs,
    read_values,
    recorded_values,
    rounded,
)
from oodbench.verify.targets import Curve, Experiment, Target


def measure_experiment(
    experiment: Experiment, frames: Mapping[str, Frames], trials: int
) -> Measured:
    """Our number of every target that there is one for; `frames` holds the sweeps that have results."""
    values, panels = {}, []
    if experiment.compute is not None:
        computed = find_computation(experiment.compute)(trials, frames)
        panels = computed.panels
        for target in experiment.targets:
            if not target.sweep and target.row in computed.values:
                values[target.key] = _scaled(computed.values[target.row], target)
    for target in experiment.targets:
        if target.sweep in frames:
            values[target.key] = _scaled(read_values(target, frames[target.sweep]), target)
    drawn = [c for c in experiment.curves if c.sweep in frames]
    panels = [*panels, *(panel for c in drawn for panel in _drawn(c, frames[c.sweep]))]
    return Measured(values=values, panels=panels)


def _scaled(values: Sequence[float], target: Target) -> list[float]:
    """Our values in the source's unit."""
    return [rounded(target.scale * value) for value in values]


def _drawn(curve: Curve, frames: Frames) -> list[Panel]:
    """The panel of a curve, or no panel without an ended run.

    A step that one of the trials did not reach has no mean.
    """
    runs = ended_runs(frames)
    runs = runs[[all(o.get(k) == v for k, v in curve.where.items()) for o in runs["options"]]]
    found = recorded_values(curve, frames, runs).merge(runs, on="id")
    kind, _, name = curve.x.partition(".")
    if kind != "step":
        found = found[at_the_end(found)]
    x = found[kind].map(lambda values: values[name]) if name else found[kind].astype(float)
    found = found.assign(x=x)
    lines = []
    for label, of_row in found.groupby("algorithm" if kind == "hparams" else "label", sort=False):
        points = of_row.groupby(["x", "trial"])["value"].agg(plain_mean) * curve.scale
        if kind == "step":
            steps_and_trials = [points.index.unique("x"), points.index.unique("trial")]
            points = points.reindex(pd.MultiIndex.from_product(steps_and_trials).sortlevel()[0])
        means = [mean_and_error(list(values)) for _, values in points.groupby("x")]
        lines.append(
            Line(
                label=str(label),
                x=[float(x) for x in points.index.unique("x")],
                y=[rounded(mean) for mean, _ in means],
                error=[0.0 if math.isnan(error) else rounded(error) for _, error in means],
            )
        )
    axis = (name or kind).replace("_", " ")
    return [Panel(title=curve.title, x=axis, y=curve.metric, lines=lines)] if lines else []
