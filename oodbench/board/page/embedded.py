"""The numbers inside a board's HTML page, from which its scripts compute everything that they show.

`numbers` are those of the chosen runs, which the page reads at once. `runs_behind` are all runs: their
hyperparameters, and by each rule the step, the score and the value. They are compressed, and read when a
number is opened. Datasets, rows and runs are given by their indices; that of a run counts the runs of its
dataset and row in the order of test sets, trials and draws.
"""

import base64
import gzip
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oodbench.board.page.contents import Contents
from oodbench.datasets import datasets as registered
from oodbench.errors import UserError
from oodbench.metrics import is_proportion
from oodbench.report.gap_tables import BASELINE, serving
from oodbench.report.gaps import CLEAR, FLOOR
from oodbench.report.html import to_json
from oodbench.report.leaderboard import constant_values, kinds
from oodbench.report.statistics import RESAMPLES, half_width
from oodbench.report.traces import Distinct, plain_means, significant
from oodbench.results.frames import sweep_runs, test_values
from oodbench.selection import USUAL, choose, find_rule
from oodbench.version import __version__

PICTURES = Path(__file__).resolve().parents[3] / "docs" / "datasets"
"""Pictures of the datasets whose licence lets them be shown; only a checkout has them."""
PLACE = ["dataset", "row", "run"]


@dataclass(frozen=True)
class Embedded:
    """The data inside the page."""

    numbers: dict[str, Any]
    runs_behind: str
    """In base64, the gzipped JSON."""


def embedded(board: Contents) -> Embedded:
    """The numbers of a board's page."""
    runs = _placed(board)
    rows = runs.drop_duplicates("row").sort_values("row")
    by_rule = {rule: _judged(board, runs, rule) for rule in board.values}
    trials = int(runs.groupby("dataset")["trial"].nunique().max())
    numbers = {
        "title": board.name,
        "version": __version__,
        "baseline": BASELINE,
        "rule": board.rule,
        "usual": USUAL,
        "constants": {"floor": FLOOR, "clear": CLEAR, "resamples": RESAMPLES},
        "half_widths": significant(half_width(np.arange(trials + 1)), 12),
        "datasets": [_dataset(board, runs, name) for name in board.datasets],
        "rows": [
            {"label": label, "kind": kind}
            for label, kind in zip(
                rows["label"], kinds(runs, rows["dataset_label"], rows["label"]), strict=True
            )
        ],
        "answer": _constants(board, runs),
        "rules": {
            rule: {"summary": find_rule(rule).description, "results": _results(judged)}
            for rule, judged in by_rule.items()
        },
        "costs": _costs(runs),
    }
    return Embedded(numbers, _compressed(_behind(runs, by_rule)))


def _placed(board: Contents) -> pd.DataFrame:
    """Add to the runs the indices `dataset`, `row` and `run`, the last counted within dataset and row."""
    runs = sweep_runs(board.frames)
    places = {name: i for i, name in enumerate(board.datasets)}
    runs = runs[runs["dataset_label"].isin(places)]
    runs = runs.assign(
        dataset_name=runs["dataset"],
        dataset=runs["dataset_label"].map(places),
        row=pd.factorize(runs["label"])[0],
        tests=runs["test_environments"].map(lambda names: "+".join(names)),
        width=runs["test_environments"].map(len),
    )
    runs = runs.sort_values(["dataset", "row", "tests", "trial", "draw"], ignore_index=True)
    return runs.assign(run=runs.groupby(["dataset", "row"]).cumcount())


def _dataset(board: Contents, runs: pd.DataFrame, name: str) -> dict[str, Any]:
    """The facts on a dataset that the page shows: metric, shift, licence, picture, sizes."""
    of_dataset = runs[runs["dataset_label"] == name]
    run, metric = of_dataset.iloc[0], board.metric(name)
    facts: dict[str, Any] = {"half": "", "kind": "", "picture": None, "licence": ""}
    with suppress(UserError):  # a dataset of a plug-in that is not loaded
        metadata = registered.get(run["dataset_name"]).metadata
        facts = {"half": metadata.half, "kind": metadata.shift_kind, "licence": metadata.licence}
        facts["picture"] = _picture(run["dataset_name"])
    return facts | {
        "name": name,
        "shift": board.leaderboard.shifts.get(name, ""),
        "metric": metric,
        "percent": is_proportion(metric),
        "higher": board.is_higher_better(name),
        "tests": [list(tests) for tests in of_dataset["test_environments"].unique()],
        "trials": int(of_dataset["trial"].nunique()),
        "draws": int(of_dataset["draw"].nunique()),
    }


def _picture(name: str) -> str | None:
    file = PICTURES / f"{name}.png"
    if not file.is_file():
        return None
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def _judged(board: Contents, runs: pd.DataFrame, rule: str) -> pd.DataFrame:
    """The runs that a rule can judge: PLACE, `trial`, `step`, `score`, `value`, `width`, `chosen`."""
    scored = board.frames.scores
    scored = scored.loc[scored["rule"] == rule, ["id", "step", "score"]]
    scored = scored[scored["id"].isin(runs["id"])]
    on_tests = test_values(board.frames, scored[["id", "step"]])
    means = plain_means(on_tests["value"], on_tests["id"])
    chosen = choose(serving(board.frames, rule), rule)[["id", "step"]].assign(chosen=True)
    table = scored.merge(runs[["id", *PLACE, "trial", "width"]], on="id")
    table = table.merge(chosen, on=["id", "step"], how="left").sort_values(PLACE)
    judged: pd.DataFrame = table.assign(
        value=table["id"].map(means), chosen=table["chosen"].eq(True)
    )
    return judged


def _results(judged: pd.DataFrame) -> list[list[Any]]:
    """Dataset, row, the value of each trial and the places of the chosen runs, of rows with all trials.

    A value is the mean over test environments; it is missing where the run diverged.
    """
    columns = ["dataset", "row"]
    chosen = judged[judged["chosen"]]
    trials = chosen.groupby(columns)["trial"].nunique()
    planned = judged.groupby("dataset")["trial"].nunique()
    places = trials.index[trials.eq(planned.reindex(trials.index, level="dataset"))]
    weighted = (chosen["value"] * chosen["width"]).fillna(-np.inf)
    sums = (
        chosen.assign(weighted=weighted).groupby([*columns, "trial"])[["weighted", "width"]].sum()
    )
    values = (sums["weighted"] / sums["width"]).groupby(columns).agg(list)
    runs = chosen.groupby(columns)["run"].agg(list)
    return [[*place, significant(values[place], 9), runs[place]] for place in places.tolist()]


def _constants(board: Contents, runs: pd.DataFrame) -> list[list[float | None] | None]:
    """The values of the constant answer by dataset and trial."""
    frames = runs.drop(columns=["dataset"])
    table = constant_values(frames, {name: board.metric(name) for name in board.datasets})
    means = table.groupby(["dataset_label", "trial"])["value"].mean()
    known = set(table["dataset_label"])
    return [significant(means[name], 9) if name in known else None for name in board.datasets]


def _costs(runs: pd.DataFrame) -> list[list[Any]]:
    """Dataset, row, seconds of the fastest run, and whether its runs were trained one by one."""
    alone = runs["provenance"].map(lambda made: not made.get("vectorized"))
    groups = runs.assign(alone=alone).groupby(["dataset", "row"])
    table = groups.agg(seconds=("training_seconds", "min"), alone=("alone", "any"))
    seconds = significant(table["seconds"], 4)
    return [
        [int(dataset), int(row), cost, int(one)]
        for (dataset, row), cost, one in zip(table.index, seconds, table["alone"], strict=True)
    ]


def _behind(runs: pd.DataFrame, by_rule: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """By dataset and row: the hyperparameters of all runs, and their step, score and value by each rule."""
    columns = Distinct()
    parts: dict[str, dict[str, Any]] = {}
    for (dataset, row), group in runs.groupby(["dataset", "row"]):
        hparams = [_short(values) for values in group["hparams"]]
        names = dict.fromkeys(name for values in hparams for name in values)
        of_part = {name: columns.place(_column([v.get(name) for v in hparams])) for name in names}
        parts[f"{dataset} {row}"] = {"hparams": of_part, "rules": {}, "ids": {}}
    ids = dict(zip(runs[PLACE].itertuples(index=False, name=None), runs["id"], strict=True))
    for rule, judged in by_rule.items():
        for (dataset, row), group in judged.groupby(["dataset", "row"]):
            part = parts[f"{dataset} {row}"]
            part["rules"][rule] = {
                "run": [int(v) for v in group["run"]],
                "step": [int(v) for v in group["step"]],
                "score": significant(group["score"], 4),
                "value": significant(group["value"], 5),
            }
            for run in group.loc[group["chosen"], "run"]:
                part["ids"][int(run)] = ids[dataset, row, run]
    return {"columns": columns.values, "parts": parts}


def _short(hparams: Mapping[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in hparams.items()}


def _column(values: list[Any]) -> Any:
    """One value where all are equal, else a list of them."""
    return {"all": values[0]} if all(value == values[0] for value in values) else values


def _compressed(tree: dict[str, Any]) -> str:
    return base64.b64encode(gzip.compress(to_json(tree).encode(), mtime=0)).decode()
