"""Figure 10 of arXiv:1706.05394: what regularizers cost on real labels where they hinder memorization.

A regularizer is a curve with a point for each strength: the training accuracy on random labels at the end
of training, and the best validation accuracy on real labels.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from oodbench.diagnose.memorization import TEST, TRAIN, over_training
from oodbench.results.tables import Tables
from oodbench.verify.targets import Values

CAP = 0.5
"""The training accuracy on random labels at which regularizers are compared."""
PAIRS = (("dropout", "weight decay"),)
"""Regularizers that the paper finds better and worse, as their rows' labels begin."""


def memorization_regularizers(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The differences of validation accuracies at the cap, for trials whose curves both reach it."""
    values: Values = {}
    for frame in frames.values():
        curves = _curves(frame)
        for one, other in PAIRS:
            difference = _at_cap(curves, one) - _at_cap(curves, other)
            values[f"{one} - {other}"] = [float(v) for v in difference.dropna()]
    return values


def _curves(frame: Tables) -> pd.DataFrame:
    """For each label and trial `memorized`, at the end on random labels, and `best`, on real ones."""
    history, by = over_training(frame), ["label", "trial"]
    random, real = (history[history["dataset_label"] == name] for name in ("randY", "real"))
    last = random.sort_values("step").groupby(by)[TRAIN].last()
    return pd.DataFrame({"memorized": last, "best": real.groupby(by)[TEST].max()}).dropna()


def _at_cap(curves: pd.DataFrame, regularizer: str) -> "pd.Series[float]":
    """By trial, the validation accuracy of a regularizer's curve at the cap, between two strengths."""
    labels = curves.index.get_level_values("label")
    points = curves[labels.str.startswith(regularizer) | (labels == "none")]
    ordered = points.sort_values("memorized").groupby("trial")
    at = {
        trial: float(np.interp(CAP, of["memorized"], of["best"], left=np.nan, right=np.nan))
        for trial, of in ordered
    }
    return pd.Series(at, dtype=float)
