"""Our numbers for an experiment, from the records of its sweeps."""

import math

import pandas as pd
from pydantic import BaseModel

from oodbench.errors import UserError
from oodbench.report.statistics import plain_mean
from oodbench.results.run_spec import COMPLETE, State
from oodbench.results.tables import CELL, Tables
from oodbench.selection.judge import choose, judge
from oodbench.verify.targets import LAST, ORACLE_LAST, Target


class Measured(BaseModel):
    """Our numbers for one experiment."""

    values: dict[str, list[float]]
    """Our value in each trial, by `Target.key`."""
    provenance: dict[str, list[str]] = {}
    """The protocols, code, torch versions and data behind the numbers."""


def read_values(target: Target, frames: Tables) -> list[float]:
    """A target's value in each trial whose runs have all ended, in order of trials; NaN if a run diverged.

    Raises UserError if the sweep does not have the row, environment or metric, or if the selection does not
    apply.
    """
    runs = _runs(target, frames)
    chosen = _chosen(target, frames, runs)
    where = target.metric, target.environment, target.split
    recorded = recorded_values(frames, runs, *where).merge(chosen, on=["id", "step"])
    if recorded.empty and not chosen.empty:
        raise UserError(
            f"no '{target.metric}' of environment '{target.environment}' ({target.split}) is "
            f"recorded for {target.row} of {target.sweep}"
        )
    of_runs = recorded.groupby(["trial", "id"])["value"].agg(plain_mean)
    return [float(v) for v in of_runs.groupby("trial").agg(plain_mean)]


def recorded_values(
    frames: Tables, runs: pd.DataFrame, metric: str, named: str | None, split: str
) -> pd.DataFrame:
    """The records of a metric for some runs: `id`, `step`, `environment`, `value`.

    `named` is `Target.environment`. The last values of a diverged run are NaN, as they are meaningless.
    """
    metrics = frames.records[frames.records["metric"] == metric]
    names = runs[["id", "training_environments", "test_environments"]]
    recorded = metrics.merge(names, on="id")
    environments = recorded["environment"]
    if named is None:
        meant = environments.isna()
    elif named in ("training", "test"):
        pairs = zip(environments, recorded[f"{named}_environments"], strict=True)
        meant = pd.Series([name in names for name, names in pairs], recorded.index, dtype=bool)
    else:
        meant = environments == named
    if named is not None:
        meant &= recorded["split"] == split
    diverged = runs.loc[runs["state"] == State.DIVERGED, "id"]
    recorded.loc[recorded["id"].isin(diverged) & at_the_end(recorded), "value"] = math.nan
    result: pd.DataFrame = recorded.loc[meant, ["id", "step", "environment", "value"]]
    return result.astype({"id": object, "environment": object})


def _runs(target: Target, frames: Tables) -> pd.DataFrame:
    runs = frames.runs
    of_row = runs["label"] == target.row
    unknown = (of_row & runs["metric"].isna()).any()
    if target.dataset is not None:
        of_row &= runs["dataset_label"] == target.dataset
    if target.test_environments is not None:
        of_row &= runs["test_environments"].map(tuple) == target.test_environments
    if not of_row.any() and not unknown:
        raise UserError(f"{target.sweep} has no run of the target {target.key}")
    if runs.loc[of_row, "dataset_label"].nunique() > 1:
        raise UserError(f"{target.sweep} has several datasets: the target {target.key} names none")
    return pd.DataFrame(runs[of_row & ~runs["helper"]])


def _chosen(target: Target, frames: Tables, runs: pd.DataFrame) -> pd.DataFrame:
    if target.selection == LAST:
        if runs["draw"].nunique() > 1:
            raise UserError(
                f"{target.sweep} has several hparam draws: {target.key} must select one"
            )
        steps = frames.records[["id", "step"]].drop_duplicates()
        if target.step is not None:
            steps = steps[steps["step"] <= target.step]
        last = steps.groupby("id", observed=True)["step"].max().reset_index()
        chosen = runs[runs["state"].isin(COMPLETE)][["id", "trial"]].merge(last, on="id")
    else:
        if target.selection == ORACLE_LAST:
            scores = judge(frames, "oracle").candidates
            chosen = scores[at_the_end(scores) & scores["complete"]].drop_duplicates(CELL)
        else:
            chosen = choose(frames, target.selection)
        chosen = chosen.loc[chosen["run"].isin(runs.index), ["id", "trial", "step"]]
    # a trial counts once the runs of all sets of test environments have ended
    sets = runs["test_environments"].nunique()
    whole = chosen.groupby("trial")["id"].transform("size") == sets
    return chosen[whole]


def last_values(named: str, frames: Tables, metric: str = "accuracy") -> pd.DataFrame:
    """The completed runs with a column `value`, a metric's mean over environments at the last step."""
    ended = frames.runs["state"].isin(COMPLETE) & ~frames.runs["helper"]
    runs: pd.DataFrame = frames.runs[ended]
    recorded = recorded_values(frames, runs, metric, named, "in")
    last = recorded[at_the_end(recorded)].groupby("id")["value"].agg(plain_mean).reset_index()
    return runs.merge(last, on="id")


def at_the_end(recorded: pd.DataFrame) -> pd.Series:
    """The mask of the records at a run's last step."""
    return recorded["step"] == recorded.groupby("id", observed=True)["step"].transform("max")
