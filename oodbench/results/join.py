"""Several results directories as one.

What is compared must have been made alike: sweeps that differ in protocol or code are refused
unless the user says that the difference is meant.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import union_categoricals

from oodbench.errors import UserError, unknown
from oodbench.results.directory import Results
from oodbench.results.frames import CELL, Frames, load_frames, sweep_runs
from oodbench.results.provenance import code
from oodbench.results.run_spec import COMPLETE

PROTOCOL = (
    "steps",
    "evaluate_every",
    "holdout",
    "network",
    "network_hparams",
    "metric",
    "search",
    "validation_environments",
    "draws",
)
"""The columns in which a dataset's runs must agree between directories; `draws` is how many a cell has."""


def joined(directories: Sequence[Path], allow_mixed: bool = False) -> Frames:
    """The runs of all directories as if they were one sweep; a run that is in several counts once.

    The runs' column `directory` has the one that a run is read from. A label that means other runs
    in a later directory gets that directory's name in brackets.
    Raises UserError if protocol or code differ, unless `allow_mixed`.
    """
    frames = [load_frames(Results(directory)) for directory in directories]
    if len(frames) == 1:
        return replace(frames[0], runs=frames[0].runs.assign(directory=str(directories[0])))
    parts = [
        completed(frame).assign(directory=str(d))
        for frame, d in zip(frames, directories, strict=True)
    ]
    columns = dict.fromkeys(name for part in parts for name in part)
    runs = pd.concat([part.dropna(axis=1, how="all") for part in parts], ignore_index=True)
    runs = runs.reindex(columns=list(columns))
    runs["better"] = runs["state"].isin(COMPLETE)
    runs = (
        runs.sort_values("better", ascending=False, kind="stable")
        .drop_duplicates("id")
        .sort_index()
    )
    if not allow_mixed:
        _check(runs)
    runs["label"] = _labels(runs)
    metrics = [
        records_of(frame.metrics, runs.loc[runs["directory"] == str(d), "id"])
        for frame, d in zip(frames, directories, strict=True)
    ]
    return Frames(runs.drop(columns=["better", "helper"]).reset_index(drop=True), stacked(metrics))


def completed(frames: Frames) -> pd.DataFrame:
    """The runs as `sweep_runs` has them, to be put beside others: those of transductive methods count as
    such whatever else is there.
    """
    runs = sweep_runs(frames)
    if "transductive" in frames.runs:
        runs["transductive"] = frames.runs["transductive"].eq(True).to_numpy()
    return runs


def only_dataset(frames: Frames, name: str) -> Frames:
    """The runs and records of one dataset, by its label; raises UserError for an unknown one."""
    runs = sweep_runs(frames).drop(columns="helper")
    labels = [str(label) for label in runs["dataset_label"].unique()]
    if name not in labels:
        raise unknown("dataset", name, labels)
    return of_runs(frames, runs[runs["dataset_label"] == name])


def of_runs(frames: Frames, runs: pd.DataFrame) -> Frames:
    """The frames of these of their runs alone."""
    ids, scores = runs["id"], frames.scores
    if scores is not None:
        scores = scores[scores["id"].isin(ids)]
    metrics = records_of(frames.metrics, ids)
    return replace(frames, runs=runs.reset_index(drop=True), metrics=metrics, scores=scores)


def records_of(metrics: pd.DataFrame, ids: "pd.Series[str]") -> pd.DataFrame:
    """The records of the runs with these ids."""
    return metrics[metrics["id"].cat.categories.isin(ids)[metrics["id"].cat.codes]]


def stacked(metrics: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables one under the other; the names stay categorical."""
    columns: dict[str, Any] = {}
    for name in Frames.METRIC_COLUMNS:
        parts = [frame[name] for frame in metrics]
        categorical = name in ("id", "environment", "split", "metric")
        columns[name] = union_categoricals(parts) if categorical else pd.concat(parts).to_numpy()
    return pd.DataFrame(columns)


def _labels(runs: pd.DataFrame) -> "pd.Series[str]":
    """The labels, with the directory where another one has other runs for the same place."""
    place = [*CELL, "draw"]
    first = runs.groupby(place)["directory"].transform("first")
    clash = runs[first != runs["directory"]]
    renamed = set(zip(clash["label"], clash["directory"], strict=True))
    return pd.Series(
        [
            f"{label} ({Path(directory).name})" if (label, directory) in renamed else label
            for label, directory in zip(runs["label"], runs["directory"], strict=True)
        ],
        runs.index,
    )


def check_protocol(runs: pd.DataFrame, names: Sequence[str] = PROTOCOL[:-1]) -> None:
    """Raise UserError if directories that share a dataset differ in one of these columns of it."""
    told = runs.assign(validation_environments=runs["validation_environments"].map(sorted))
    for dataset, of_dataset in told.groupby("dataset_label", sort=False):
        trials = of_dataset.groupby("directory")["trial"].agg(set)
        of_dataset = of_dataset[of_dataset["trial"].isin(set.intersection(*trials))]
        for name in names:
            _alike(of_dataset, name, f"in {name.replace('_', ' ')} of {dataset}")


def _check(runs: pd.DataFrame) -> None:
    """Raise UserError if directories that share a dataset differ in protocol, or in code."""
    draws = runs.groupby([*CELL, "directory"])["draw"].transform("nunique")
    check_protocol(runs.assign(draws=draws), PROTOCOL)
    made = runs[runs["provenance"].map(bool)]
    _alike(made.assign(code=made["provenance"].map(code)), "code", "in code")


def _alike(runs: pd.DataFrame, column: str, where: str) -> None:
    known = runs.dropna(subset=[column])
    texts = known[column].map(lambda value: json.dumps(value, sort_keys=True, default=str))
    found = {
        str(d): tuple(sorted(set(v))) for d, v in texts.groupby(known["directory"], sort=False)
    }
    (first, values), *others = found.items() if found else [("", ())]
    for directory, theirs in others:
        if theirs != values:
            told = [", ".join(v) for v in (values, theirs)]
            raise UserError(
                f"{first} and {directory} differ {where} ({told[0]} against {told[1]}); "
                "--allow-mixed compares them all the same"
            )
