"""The orderings in arXiv:1706.05394 as signed differences by trial, above 0 if they are reproduced.

Figure 10 of the paper shows what regularizers that hinder memorization cost on real labels. A regularizer
is a curve with a point for each strength: the training accuracy on random labels at the end of training,
and the best validation accuracy on real labels.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from oodbench.diagnose.memorization import (
    CSR,
    KEYS,
    TEST,
    TRAIN,
    errors_of_examples,
    fitted,
    gini_over_training,
    over_training,
    spread,
)
from oodbench.results.tables import Tables
from oodbench.verify.targets import Values

CAP = 0.5
"""The training accuracy on random labels at which regularizers are compared."""
PAIRS = (("dropout", "weight decay"),)
"""Regularizers that the paper finds better and worse, by the beginnings of rows' labels."""
NOISY = "randY 0.4", "randY 0.8"
"""The datasets on which patterns are learned before noise."""


def orderings(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The differences by target; raises UserError if the runs of one epoch keep no predictions."""
    values: dict[str, Any] = {}
    if (long := frames.get("memorization-real-random")) is not None:
        values |= _of_critical_samples(over_training(long))
        last = {name: of[:, -1] for name, of in gini_over_training(long, trials).items()}
        values["Gini, real - randX"] = last["real"] - last["randX"]
    if (short := frames.get("memorization-one-epoch")) is not None:
        spreads = {name: spread(errors) for name, errors in errors_of_examples(short).items()}
        for name, of_runs in spreads.items():
            values[f"spread, {name} - binomial"] = [value - 1 for value in of_runs]
        values["spread, real - randX"] = np.subtract(spreads["real"], spreads["randX"])
    if (time := frames.get("memorization-over-time")) is not None:
        values |= _of_time(over_training(time))
    if (sizes := frames.get("memorization-capacity")) is not None:
        values |= _of_capacity(over_training(sizes))
    return {name: [*map(float, of_trials)] for name, of_trials in values.items()}


def _of_critical_samples(curves: pd.DataFrame) -> dict[str, Any]:
    csr = curves.pivot(index=["dataset_label", "trial"], columns="step", values=CSR)
    first, last = csr.iloc[:, 0], csr.iloc[:, -1]
    values = {f"CSR, {n} - real": last.loc[n] - last.loc["real"] for n in ("randX", "randY")}
    for n in ("real", "randX", "randY"):
        values[f"CSR, {n}: last - first"] = last.loc[n] - first.loc[n]
    return values


def _of_time(curves: pd.DataFrame) -> dict[str, Any]:
    # patterns are learned before noise: with noisy labels, the test accuracy is highest before the training
    # set is fitted (at the end, if never), and then falls
    noisy = curves[curves["dataset_label"].isin(NOISY)].sort_values("step")
    runs = noisy.groupby(KEYS)[TEST]
    best = noisy.loc[runs.idxmax()].set_index(KEYS)["step"]
    steps = fitted(noisy).fillna(noisy["step"].max()) - best
    fall = runs.max() - runs.last()
    values = {f"steps, {n}: fitted - best": steps.loc[n] for n in NOISY}
    return values | {f"accuracy, {n}: best - last": fall.loc[n] for n in NOISY}


def _of_capacity(curves: pd.DataFrame) -> dict[str, Any]:
    # the gain in best test accuracy by more units, and the speed-up in fitting the training set (as a
    # logarithm to base 2; runs that never fit it count as fitted at the end), on noise and on real data
    best = curves.groupby(KEYS)[TEST].max()
    steps = fitted(curves).fillna(curves["step"].max()).map(np.log2)

    def by_units(values: Any, name: str) -> Any:
        return values.loc[f"{name}, 500", "units 256"] - values.loc[f"{name}, 500", "units 16"]

    def by_images(values: Any, name: str) -> Any:
        return values.loc[f"{name}, 1000", "units 256"] - values.loc[f"{name}, 250", "units 256"]

    gain = by_units(best, "half randX") - by_units(best, "real")
    faster = by_units(steps, "real") - by_units(steps, "half randX")
    slower = by_images(steps, "randX") - by_images(steps, "real")
    return {
        "accuracy by units, half randX - real": gain,
        "speed by units, half randX - real": faster,
        "time by images, randX - real": slower,
    }


def regularizers(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The differences of validation accuracies at the cap, for trials in which both curves reach it."""
    values: Values = {}
    for frame in frames.values():
        curves = _curves(frame)
        for one, other in PAIRS:
            difference = _at_cap(curves, one) - _at_cap(curves, other)
            values[f"{one} - {other}"] = [float(v) for v in difference.dropna()]
    return values


def _curves(frame: Tables) -> pd.DataFrame:
    # by label and trial: `memorized`, at the end on random labels, and `best`, on real labels
    history, by = over_training(frame), ["label", "trial"]
    random, real = (history[history["dataset_label"] == name] for name in ("randY", "real"))
    last = random.sort_values("step").groupby(by)[TRAIN].last()
    return pd.DataFrame({"memorized": last, "best": real.groupby(by)[TEST].max()}).dropna()


def _at_cap(curves: pd.DataFrame, regularizer: str) -> "pd.Series[float]":
    # by trial, the validation accuracy of a regularizer's curve at the cap, interpolated
    labels = curves.index.get_level_values("label")
    points = curves[labels.str.startswith(regularizer) | (labels == "none")]
    ordered = points.sort_values("memorized").groupby("trial")
    at = {
        trial: float(np.interp(CAP, of["memorized"], of["best"], left=np.nan, right=np.nan))
        for trial, of in ordered
    }
    return pd.Series(at, dtype=float)
