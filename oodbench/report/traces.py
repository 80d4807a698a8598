"""Values of runs over their steps, by small integer codes: the numbers behind the report's charts.

All values are of each dataset's main metric.
"""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from oodbench.results.frames import CELL, Frames

ROLES = ("other", "training", "validation", "test")
"""The roles that an environment can have in a run."""
SPLITS = ("in", "out")
CURVE_VALUES = 200_000
"""The curves of a rule are thinned, at even steps, to about this many points."""


@dataclass(frozen=True)
class Traces:
    """The main metric's values of all runs."""

    environments: list[str]
    steps: Sequence[int]
    holdout: np.ndarray[Any, Any]
    """(runs,) booleans: whether a run holds examples out of its training environments."""
    rows: pd.DataFrame
    """One value in each row: `run` (its row in the runs' frame), `step`, `environment`, `split` and `role`
    (codes into `steps`, `environments`, SPLITS and ROLES), `value`."""


class Distinct:
    """Distinct values, in the order in which they were first added."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        """Return the place of the value in `values`, to which it is added if it is new."""
        key = json.dumps(value, sort_keys=True, default=str)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def traces(frames: Frames, runs: pd.DataFrame) -> Traces:
    """Return the values of `runs`, which `frames.sweep_runs` made of these frames."""
    metrics = frames.metrics
    ids, kinds = metrics["id"].cat, metrics["metric"].cat
    run = pd.Index(runs["id"]).get_indexer(ids.categories)[ids.codes]
    main = kinds.categories.get_indexer(pd.Index(runs["metric"]))[run] == kinds.codes
    main &= metrics["environment"].notna().to_numpy()
    kept, run = metrics[main], run[main]
    environments = [str(name) for name in kept["environment"].cat.categories]
    environment = kept["environment"].cat.codes.to_numpy()
    step, steps = pd.factorize(kept["step"], sort=True)
    rows = pd.DataFrame(
        {
            "run": run,
            "step": step,
            "environment": environment,
            "split": (kept["split"] == "out").to_numpy(int),
            "role": _roles(runs, environments)[run, environment],
            "value": kept["value"].to_numpy(float),
        }
    )
    return Traces(environments, [int(s) for s in steps], (runs["holdout"] > 0).to_numpy(bool), rows)


def _roles(runs: pd.DataFrame, environments: Sequence[str]) -> np.ndarray[Any, Any]:
    """(runs, environments): codes into ROLES."""
    place = {name: i for i, name in enumerate(environments)}
    table = np.zeros((len(runs), len(environments)), np.int8)
    for role in ROLES[1:]:
        for run, names in enumerate(runs[f"{role}_environments"]):
            for name in names:
                if name in place:
                    table[run, place[name]] = ROLES.index(role)
    return table


def inside_and_test(traced: Traces) -> pd.DataFrame:
    """`run`, `place` (in `steps`), `inside`, `test`: means over environments, NaN if nothing is recorded.

    `inside` is over the training environments' `out` splits (`in` where nothing was held out),
    `test` over the test environments' `in` splits, as in a leaderboard.
    """
    rows = traced.rows
    held_out = traced.holdout[rows["run"]]
    unseen = np.where(held_out, rows["split"] == 1, rows["split"] == 0)
    parts = {
        "inside": rows[(rows["role"] == ROLES.index("training")) & unseen],
        "test": rows[(rows["role"] == ROLES.index("test")) & (rows["split"] == 0)],
    }
    keys = ["run", "step"]
    means = [_summaries(part, keys)["mean"].rename(name) for name, part in parts.items()]
    return pd.concat(means, axis=1).reset_index().rename(columns={"step": "place"})


def judged_runs(
    rated: pd.DataFrame, runs: pd.DataFrame, traced: Traces, means: pd.DataFrame
) -> pd.DataFrame:
    """Return each run of `rated` (see `selection.candidates`) at its best step, the best run first.

    The new columns are `chosen` (whether its cell chooses it), the `run` and the `place` of its step in
    `traced`, and the `means` there, see `inside_and_test`.
    """
    judged = rated.drop_duplicates("id")
    judged = judged.assign(chosen=judged["complete"] & ~judged.duplicated(CELL))
    judged["run"] = pd.Index(runs["id"]).get_indexer(pd.Index(judged["id"]))
    judged["place"] = pd.Index(traced.steps).get_indexer(pd.Index(judged["step"]))
    return judged.merge(means, on=["run", "place"], how="left")


def _summaries(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return by `keys` the `mean` of the values; NaN where one is NaN."""
    table = rows.groupby(keys)["value"].agg(["mean", "count", "size"])
    return table.assign(mean=table["mean"].where(table["count"] == table["size"]))


def curves(
    traced: Traces, chosen: npt.ArrayLike, cells: npt.ArrayLike, grids: Distinct
) -> list[dict[str, Any]]:
    """Return learning curves of the `chosen` runs (rows of the runs' frame), averaged within `cells`.

    A curve is the mean over a cell's runs of one (environment, split): its `cell`, `environment`,
    `split` and `role`, its `steps` (their place in `grids`), and the `mean` at each.
    """
    cell = pd.Series(np.asarray(cells, int), index=np.asarray(chosen, int))
    rows = traced.rows[traced.rows["run"].isin(cell.index)]
    rows = rows.assign(cell=cell.reindex(rows["run"]).to_numpy())
    keys = ["cell", "environment", "split", "role"]
    table = _summaries(rows, [*keys, "step"]).reset_index()
    every = -(-len(table) // CURVE_VALUES)
    starts = np.flatnonzero((table[keys].diff() != 0).any(axis=1))
    columns = {name: table[name].to_numpy() for name in (*keys, "step", "mean")}
    averaged: list[dict[str, Any]] = []
    for start, end in itertools.pairwise([*starts, len(table)]):
        points = slice(start + (end - 1 - start) % every, end, every)  # the last step stays
        averaged.append(
            {key: int(columns[key][start]) for key in keys}
            | {
                "steps": grids.place([traced.steps[s] for s in columns["step"][points]]),
                "mean": significant(columns["mean"][points], 4),
            }
        )
    return averaged


def plain_means(values: "pd.Series[float]", groups: Any) -> "pd.Series[float]":
    """Return the mean of each group, NaN if a value is NaN; no value may be infinite."""
    means = values.fillna(-math.inf).groupby(groups, sort=False).mean()
    return means.replace(-math.inf, math.nan)


def significant(values: Any, digits: int) -> list[float | None]:
    """Return values (n,) rounded to `digits` significant digits; None where a value is not finite."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values, float)]
