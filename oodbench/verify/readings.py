"""Reads the numbers that targets and curves ask for off the records of sweeps. Imports no torch."""

import math

import pandas as pd

from oodbench.errors import UserError
from oodbench.report.statistics import plain_mean
from oodbench.results.frames import CELL, Frames, sweep_runs
from oodbench.results.run_spec import COMPLETE, State
from oodbench.selection import candidates, choose
from oodbench.verify.targets import LAST, ORACLE_LAST, Reading, Target


def read_values(target: Target, frames: Frames) -> list[float]:
    """A value for each trial whose runs have all ended, in the order of the trials; NaN if one diverged.

    Raises UserError if the sweep has no such row, environment or metric, or cannot serve the
    selection.
    """
    runs = _runs(target, frames)
    chosen = _chosen(target, frames, runs)
    found = recorded_values(target, frames, runs).merge(chosen, on=["id", "step"])
    if found.empty and not chosen.empty:
        raise UserError(
            f"no '{target.metric}' of environment '{target.environment}' ({target.split}) is "
            f"recorded for {target.row} of {target.sweep}"
        )
    runs_of = found.groupby(["trial", "id"])["value"].agg(plain_mean)
    return [float(v) for v in runs_of.groupby("trial").agg(plain_mean)]


def recorded_values(reading: Reading, frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """The records of these runs that a reading refers to: `id`, `step`, `environment`, `value`.

    The last values of a diverged run are NaN: an accuracy would look like that of a network.
    """
    metrics = frames.metrics[frames.metrics["metric"] == reading.metric]
    names = runs[["id", "training_environments", "test_environments"]]
    found = metrics.merge(names, on="id")
    place, named = found["environment"], reading.environment
    if named is None:
        meant = place.isna()
    elif named == "every":
        meant = place.notna()
    elif named in ("training", "test"):
        own = zip(place, found[f"{named}_environments"], strict=True)
        meant = pd.Series([name in names for name, names in own], found.index, dtype=bool)
    else:
        meant = place == named
    if named is not None:
        meant &= found["split"] == reading.split
    diverged = runs.loc[runs["state"] == State.DIVERGED, "id"]
    found.loc[found["id"].isin(diverged) & at_the_end(found), "value"] = math.nan
    result: pd.DataFrame = found.loc[meant, ["id", "step", "environment", "value"]]
    result = result.astype({"id": object, "environment": object})
    return result


def _runs(target: Target, frames: Frames) -> pd.DataFrame:
    """The runs of a target's row; none if it may be one of those that never started.

    What tables call a dataset is only known from its runs.
    """
    runs = sweep_runs(frames)
    mine = runs["label"] == target.row
    unknown = (mine & runs["metric"].isna()).any()
    if target.dataset is not None:
        mine &= runs["dataset_label"] == target.dataset
    if target.test_environments is not None:
        mine &= runs["test_environments"].map(tuple) == target.test_environments
    if not mine.any() and not unknown:
        raise UserError(f"no run of {target.sweep} is that of the target {target.key}")
    if runs.loc[mine, "dataset_label"].nunique() > 1:
        raise UserError(f"{target.sweep} has several datasets: the target {target.key} names none")
    return runs[mine & ~runs["helper"]]


def _chosen(target: Target, frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """`id`, `step`, `trial` of the runs of the trials that are complete."""
    if target.selection == LAST:
        if runs["draw"].nunique() > 1:
            raise UserError(
                f"{target.sweep} has several hparam draws: {target.key} must select one"
            )
        steps = frames.metrics[["id", "step"]].drop_duplicates()
        if target.step is not None:
            steps = steps[steps["step"] <= target.step]
        last = steps.groupby("id", observed=True)["step"].max().reset_index()
        chosen = runs[runs["state"].isin(COMPLETE)][["id", "trial"]].merge(last, on="id")
    else:
        chosen = _selected(frames, target.selection)[["id", "trial", "step"]]
        chosen = chosen[chosen["id"].isin(runs["id"])]
    sets = runs["test_environments"].nunique()
    whole = chosen.groupby("trial")["id"].transform("size") == sets
    return chosen[whole]


def _selected(frames: Frames, rule: str) -> pd.DataFrame:
    if rule != ORACLE_LAST:
        return choose(frames, rule)
    found = candidates(frames, "oracle")
    return found[at_the_end(found) & found["complete"]].drop_duplicates(CELL)


def last_values(reading: Reading, frames: Frames) -> pd.DataFrame:
    """The runs that have ended, with their `value` at the last step: the mean over the environments."""
    runs = ended_runs(frames)
    found = recorded_values(reading, frames, runs)
    found = found[at_the_end(found)].groupby("id")["value"].agg(plain_mean).reset_index()
    return runs.merge(found, on="id")


def ended_runs(frames: Frames) -> pd.DataFrame:
    """The runs of the sweep that are done or diverged, without those that only serve selection."""
    runs = sweep_runs(frames)
    result: pd.DataFrame = runs[runs["state"].isin(COMPLETE) & ~runs["helper"]]
    return result


def at_the_end(recorded: pd.DataFrame) -> pd.Series:
    """Which records are of the last step of their run."""
    return recorded["step"] == recorded.groupby("id", observed=True)["step"].transform("max")


def rounded(value: float) -> float:
    """The number rounded to 10 significant digits, so that files do not change with the last bits."""
    return float(f"{value:.10g}")
