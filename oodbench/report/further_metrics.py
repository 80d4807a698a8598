"""Columns of further metrics in a leaderboard, such as a calibration error beside accuracies."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from oodbench.metrics import is_proportion
from oodbench.notes import Note
from oodbench.report.leaderboard import Column, Leaderboard, is_mean, leaderboard_by_rule
from oodbench.report.numbers import number
from oodbench.results.frames import Frames, subset, sweep_runs
from oodbench.selection import usual


def with_further_metrics(
    shown: Leaderboard, frames: Frames, rule: str | None, metrics: Sequence[str]
) -> Leaderboard:
    """Return the board with a column for each of these metrics, of the same runs at the same steps.

    A cell has the row's mean over test environments; datasets that lack the metric have none. Raises
    UserError for a metric that no dataset has.
    """
    runs, recorded = sweep_runs(frames), frames.metrics[["id", "metric"]].astype(object)
    frame, notes, also = shown.frame, list(shown.notes), list(shown.also)
    for metric in metrics:
        ids = recorded.loc[recorded["metric"] == metric, "id"].unique()
        datasets = runs.loc[runs["id"].isin(ids), "dataset_label"].unique()
        kept = runs["dataset_label"].isin(datasets) if len(datasets) else runs["id"].notna()
        of_runs = subset(frames, runs[kept].drop(columns="helper"))
        other = leaderboard_by_rule(of_runs, rule or usual(frames), metric)
        unit = f"{metric} (%)" if is_proportion(metric) else metric
        means = other.frame[is_mean(other.frame) & (other.frame["n"] > 0)]
        names = {"mean": metric, "stderr": f"{metric}_stderr"}
        means = means[["dataset", "label", *names]].rename(columns=names)
        frame = frame.merge(means, on=["dataset", "label"], how="left")
        also.append(Column(unit, partial(_further, metric), needs=metric))
        way = f"{'higher' if other.higher[metric] else 'lower'} is better"
        text = (
            f"{metric}: {way}; the mean over test environments of the same runs at the same steps."
        )
        notes.append(Note(text, f"{metric}: the same runs; {way}."))
    return replace(shown, frame=frame, notes=tuple(notes), also=tuple(also))


def _further(metric: str, row: Mapping[Any, Any]) -> str:
    """Return a row's mean of a further metric; empty of rows that lack it."""
    mean = row[metric]
    return "" if np.isnan(mean) else number(mean, row[f"{metric}_stderr"], metric)
