"""From a results directory's frames to a leaderboard, and its layout. Imports no torch.

`leaderboard` computes every number; `blocks` lays them out, one block a dataset.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from oodbench.errors import unknown
from oodbench.records import Frames
from oodbench.selection import CELL, ENDED, RULES, choose, sweep_runs

PROPORTIONS = ("accuracy", "agreement")
"""Metrics in [0, 1] that are printed in % and of which more is better; of any other, less is."""
COLUMN = ["test_environments", "environment", "metric"]
"""The columns of a leaderboard's frame that make a column of a printed table."""
AVERAGE = "average"


@dataclass(frozen=True)
class Leaderboard:
    """The numbers of a table, and what must be said beside them."""

    frame: pd.DataFrame
    """A number a row: `dataset`, `label`, `test_environments` (joined by `+`), `environment`,
    `metric`, `mean` and `stderr` (over trials, ddof=1; NaN for one trial), `n` (complete trials),
    `planned` (trials), `rule`. The mean over all test environments has the environment `average`;
    metrics of the predictor itself have none."""
    higher: Mapping[str, bool]
    """Metric to whether a higher value is better."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A table as texts."""

    title: str
    header: list[str]
    rows: list[list[str]]
    ranked: int
    """The first so many rows are complete, the best one first; the others are not ranked."""
    best: set[tuple[int, int]] = field(default_factory=set)
    """(row, column) of the best values."""


def leaderboard(frames: Frames, rule: str = "train_val", metric: str | None = None) -> Leaderboard:
    """The test environments' `metric` on their `in` splits at what `rule` chose.

    `metric` is each dataset's own by default; it never changes what is chosen. Raises UserError for
    an unknown rule or metric.
    """
    chosen = choose(frames, rule)
    runs = sweep_runs(frames)
    reported, directions = _reported(frames, runs, metric)
    values = _per_trial(frames, _grid(runs), chosen, reported)
    rows = []
    for key, group in values.groupby(["dataset_label", "label", *COLUMN], sort=False):
        mean, stderr = mean_and_error(group.loc[group["complete"], "value"].to_numpy(float))
        rows.append((*key, mean, stderr, int(group["complete"].sum()), len(group), rule))
    names = ["dataset", "label", *COLUMN, "mean", "stderr", "n", "planned", "rule"]
    frame = pd.DataFrame(rows, columns=names)
    higher = {m: directions.get(m, m in PROPORTIONS) for m in frame["metric"].unique() if m}
    return Leaderboard(frame, higher, _notes(frames.runs, rule, higher))


def mean_and_error(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Mean and standard error (ddof=1) of (n,) values; NaN where n is too small."""
    n = len(values)
    mean = float(values.mean()) if n else math.nan
    return mean, float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan


def _reported(
    frames: Frames, runs: pd.DataFrame, metric: str | None
) -> tuple[dict[str, str], dict[str, bool]]:
    """The metric that is reported for each dataset, and the direction of the datasets' own."""
    started = runs.dropna(subset=["metric"]).drop_duplicates("dataset_label")
    main = dict(zip(started["dataset_label"], started["metric"], strict=True))
    higher = {
        str(m): bool(h) for m, h in zip(started["metric"], started["higher_is_better"], strict=True)
    }
    datasets = runs.set_index("id")["dataset_label"]
    if metric is not None:
        scored = frames.metrics[frames.metrics["environment"].notna()]
        pairs = scored[["id", "metric"]].drop_duplicates()
        known = pairs["metric"].groupby(pairs["id"].map(datasets)).unique()
        for dataset in main:
            if metric not in known.get(dataset, ()):
                raise unknown("metric", metric, sorted(known.get(dataset, ())), dataset)
        main = dict.fromkeys(main, metric)
    return {d: main.get(d, "") for d in datasets.unique()}, higher


def _grid(runs: pd.DataFrame) -> pd.DataFrame:
    """Every cell that a table of these runs has a place for, in the order of the sweep."""
    own = runs[~runs["helper"]]
    tests = own[["dataset_label", "test_environments", "trial"]].drop_duplicates()
    return own[["dataset_label", "label"]].drop_duplicates().merge(tests, on="dataset_label")


def _per_trial(
    frames: Frames, grid: pd.DataFrame, chosen: pd.DataFrame, reported: Mapping[str, str]
) -> pd.DataFrame:
    """dataset_label, label, *COLUMN, trial, `value` and whether the trial is `complete`."""
    records = at(frames.metrics, chosen[[*CELL, "id", "step"]])
    scored = records[records["split"] == "in"][[*CELL, "environment", "metric", "value"]]
    own = records[records["environment"].isna()][[*CELL, "metric", "value"]]
    cells = grid.merge(chosen[[*CELL, "id"]], on=CELL, how="left")
    cells["complete"] = cells.pop("id").notna()

    tests = cells.assign(environment=cells["test_environments"]).explode("environment")
    tests["metric"] = tests["dataset_label"].map(reported)
    tests = tests.merge(scored, on=[*CELL, "environment", "metric"], how="left")
    names = own[["dataset_label", "metric"]].drop_duplicates()
    predictor = cells.merge(names, on="dataset_label")
    predictor = predictor.merge(own, on=[*CELL, "metric"], how="left").assign(environment="")

    parts = [
        tests.assign(test_environments=tests["test_environments"].map("+".join)),
        _over_tests(tests.assign(environment=AVERAGE)),
        _over_tests(predictor),
    ]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def at(metrics: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """The records at the `id` and `step` of each row of `chosen`, with its other columns."""
    there = metrics["id"].cat.categories.isin(chosen["id"])[metrics["id"].cat.codes]
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    return metrics[there].astype(names).merge(chosen, on=["id", "step"])


def _over_tests(values: pd.DataFrame) -> pd.DataFrame:
    """One value a trial: the mean over test environments, complete if all of them are."""
    key = ["dataset_label", "label", "environment", "metric", "trial"]
    groups = values.groupby(key, sort=False)
    means = groups.agg(
        value=("value", lambda v: v.mean(skipna=False)), complete=("complete", "all")
    )
    return means.reset_index().assign(test_environments="")


def _notes(runs: pd.DataFrame, rule: str, higher: Mapping[str, bool]) -> tuple[str, ...]:
    trials, draws = runs["trial"].nunique(), runs["draw"].nunique()
    error = "mean ± standard error over trials (ddof=1); " if trials > 1 else ""
    directions = [f"{m}: {'higher' if up else 'lower'} is better" for m, up in higher.items()]
    states = runs["state"].value_counts()
    counts = [f"{states.get(s, 0)} {s}" for s in (*ENDED, "failed")]
    missing = len(runs) - sum(states.get(s, 0) for s in (*ENDED, "failed"))
    codes = {_code(p) for p in runs["provenance"] if p}
    return (
        f"Selection {rule}: {RULES[rule].summary}.",
        f"Values: in split of the test environments; {error}"
        f"trials: {trials}, hparam draws: {draws}.",
        *([f"{'; '.join(directions)}."] if directions else []),
        f"Runs: {', '.join(counts)}, {missing} missing, of {len(runs)}. "
        "n: trials whose runs all ended; a row with n such as 4/5 is incomplete and not ranked.",
        f"Code: {'; '.join(sorted(codes)) or 'none yet'}.",
    )


def _code(provenance: Mapping[str, Any]) -> str:
    commit = str(provenance.get("commit") or "no commit")
    short = commit[:12] + ("+" if commit[12:].endswith("+") else "")
    return f"oodbench {provenance.get('oodbench', '?')} ({short})"


def number(mean: float, stderr: float, metric: str) -> str:
    """A value as it is printed: a proportion in % with one decimal, others to 4 digits."""
    if metric in PROPORTIONS:
        texts = [f"{100 * v:.1f}" for v in (mean, stderr)]
    else:
        texts = [f"{mean:#.4g}".rstrip("."), f"{stderr:.2g}"]
    return texts[0] if math.isnan(stderr) else " ± ".join(texts)


def blocks(board: Leaderboard) -> list[Block]:
    """A block for each dataset, and one over the datasets if there are several."""
    groups = dict(list(board.frame.groupby("dataset", sort=False)))
    found = [_block(str(name), frame, board.higher) for name, frame in groups.items()]
    return [*found, _summary(board)] if len(found) > 1 else found


def _header(column: tuple[str, str, str], columns: list[tuple[str, str, str]]) -> str:
    tests, environment, metric = column
    if not environment:
        return metric
    others = [c for c in columns if c[1] == environment and c != column and c[0]]
    return f"{environment} (of {tests})" if others and tests != environment else environment


def _complete(average: pd.DataFrame) -> pd.Series:
    return average["n"] == average["planned"]


def _averages(frame: pd.DataFrame) -> pd.DataFrame:
    """The average of each row of a dataset, by label."""
    own = (frame["environment"] == AVERAGE) & (frame["test_environments"] == "")
    return frame[own].set_index("label")


def _block(dataset: str, frame: pd.DataFrame, higher: Mapping[str, bool]) -> Block:
    averages = _averages(frame)
    metric = str(averages["metric"].iloc[0])
    averages = averages.sort_values(
        "mean", ascending=not higher.get(metric, True), kind="stable", key=lambda m: m.map(_rounded)
    )
    complete = _complete(averages)
    labels = [*averages.index[complete], *averages.index[~complete]]
    columns = list(frame[COLUMN].drop_duplicates().itertuples(index=False, name=None))
    cells = frame.set_index(["label", *COLUMN])
    rows = []
    for label in labels:
        row = [str(label)]
        for column in columns:
            cell = cells.loc[(label, *column)]
            text = number(cell["mean"], cell["stderr"], column[2]) if cell["n"] else "-"
            row.append(text)
        n, planned = averages.loc[label, ["n", "planned"]]
        rows.append([*row, f"{n}" if n == planned else f"{n}/{planned}"])
    ranked, best = int(complete.sum()), set()
    for c, column in enumerate(columns):
        means = [cells.loc[(label, *column), "mean"] for label in labels[:ranked]]
        best |= _best(means, c + 1, higher.get(column[2], True))
    kind = f"{metric}{' (%)' if metric in PROPORTIONS else ''}"
    header = ["algorithm", *(_header(c, columns) for c in columns), "n"]
    title = f"{dataset}: {kind}" if metric else f"{dataset}: nothing recorded yet"
    return Block(title, header, rows, ranked, best)


def _rounded(mean: float) -> float:
    """Without the last bits, so that equal values are equal however they were added up."""
    return float(f"{mean:.12g}")


def _best(means: Sequence[float], column: int, higher: bool) -> set[tuple[int, int]]:
    """(row, column) of the best of at least two values."""
    rounded = [_rounded(m) for m in means]
    finite = [m for m in rounded if not math.isnan(m)]
    if len(rounded) < 2 or not finite:
        return set()
    value = max(finite) if higher else min(finite)
    return {(row, column) for row, mean in enumerate(rounded) if mean == value}


def _summary(board: Leaderboard) -> Block:
    """Every dataset's average, their mean where they are proportions, and the mean rank.

    Ranks are among the labels that are complete on every dataset; equal values share their mean rank.
    """
    groups = dict(list(board.frame.groupby("dataset", sort=False)))
    averages = {str(name): _averages(frame) for name, frame in groups.items()}
    labels = list(board.frame["label"].unique())
    full = [
        label
        for label in labels
        if all(_complete(average).get(label, False) for average in averages.values())
    ]
    ranks, shares = [], []
    for average in averages.values():
        metric = str(average["metric"].iloc[0])
        means = average["mean"].map(_rounded).reindex(labels)
        up = board.higher.get(metric, True)
        ranks.append(means[full].rank(ascending=not up, na_option="bottom"))
        if metric in PROPORTIONS:
            shares.append(means.where(_complete(average).reindex(labels, fill_value=False)))
    rank = pd.concat(ranks, axis=1).mean(axis=1)
    share = pd.concat(shares, axis=1).mean(axis=1, skipna=False) if shares else None
    full.sort(key=lambda label: rank[label])
    order = [*full, *(label for label in labels if label not in full)]
    rows = []
    for label in order:
        row = [str(label)]
        for a in averages.values():
            there = label in a.index and a.loc[label, "n"]
            row.append(number(*a.loc[label, ["mean", "stderr", "metric"]]) if there else "-")
        if share is not None:
            row.append(
                "-" if math.isnan(share[label]) else number(share[label], math.nan, "accuracy")
            )
        rows.append([*row, f"{rank[label]:.2f}" if label in full else "-"])
    header = ["algorithm", *averages, *(["average (%)"] if shares else []), "mean rank"]
    best = _best([rank[x] for x in full], len(header) - 1, False)
    if share is not None:
        best |= _best([share[x] for x in full], len(header) - 2, True)
    return Block("All datasets: averages over test environments", header, rows, len(full), best)
