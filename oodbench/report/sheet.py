"""A leaderboard as texts in rows and columns: one block a dataset, then over the datasets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from oodbench.metrics import is_proportion
from oodbench.report.formats import OVER_DATASETS, Block, Sheet
from oodbench.report.further_metrics import with_further_metrics
from oodbench.report.leaderboard import (
    COLUMN,
    METHOD,
    TRANSDUCTIVE,
    Leaderboard,
    is_mean,
    leaderboard,
)
from oodbench.report.numbers import number
from oodbench.report.prediction_metrics import with_prediction_metric
from oodbench.results.frames import Frames

APART = "of transductive methods"
"""The end of the title of the table of methods whose predictions depend on test inputs."""


def sheet(board: Leaderboard) -> Sheet:
    """Return the sheet of a leaderboard."""
    tables = blocks(board)
    marks = []
    if any(block.best for block in tables):
        marks.append("Bold: the best value.")
    if any(block.near for block in tables):
        marks.append("Underlined: no further from it than its standard error.")
    apart = []
    if any(block.title.endswith(APART) for block in tables):
        apart.append("Predictions of transductive methods depend on the other test inputs, too.")
    notes = (*board.notes, *apart, *board.findings)
    rows = board.frame.to_dict(orient="records")
    new = [c for c in board.columns if c.name not in board.frame and c not in board.also]
    frame = board.frame.assign(**{column.name: list(map(column.text, rows)) for column in new})
    numbers = frame.to_dict("list")
    paper = next((block for block in tables if block.title == OVER_DATASETS), tables[0])
    return Sheet(tables, notes, board.remarks, numbers, (" ".join(marks),) if marks else (), paper)


def leaderboard_sheet(
    frames: Frames, rule: str | None = None, metric: str | None = None, also: Sequence[str] = ()
) -> Sheet:
    """Return the leaderboard of the runs of `joined`, with columns of the metrics `also`.

    Raises UserError for unknown names.
    """
    for name in dict.fromkeys([metric, *also]):
        frames = with_prediction_metric(frames, [rule], name)
    shown = leaderboard(frames, rule, metric)
    return sheet(with_further_metrics(shown, frames, rule, list(dict.fromkeys(also))))


def blocks(board: Leaderboard) -> list[Block]:
    """Return one or two blocks per dataset; with several datasets also their means, and means by kind of
    shift.
    """
    numbers = dict(list(board.frame.groupby("dataset", sort=False)))
    tables = []
    for name, frame in numbers.items():
        tables += _dataset_blocks(str(name), frame, board)
    if len(numbers) == 1:
        return tables
    shifts = {board.shifts.get(str(name), "") for name in numbers}
    over_datasets = [_summary(board), *([_by_shift(board)] if len(shifts) > 1 else [])]
    return tables + [_with_columns(block, board) for block in over_datasets]


def _with_columns(block: Block, board: Leaderboard) -> Block:
    """Append to a block over several datasets those of the last columns that belong there."""
    columns = [column for column in board.columns if column.overall]
    first = board.frame.drop_duplicates("label").set_index("label", drop=False)
    rows = [
        [*row, *(column.text(first.loc[row[0]].to_dict()) for column in columns)]
        for row in block.rows
    ]
    return replace(block, header=[*block.header, *(c.name for c in columns)], rows=rows)


def _header(column: tuple[str, str, str], columns: Sequence[tuple[str, str, str]]) -> str:
    tests, environment, metric = column
    if not environment:
        return metric
    others = [c for c in columns if c[1] == environment and c != column and c[0]]
    return f"{environment} (of {tests})" if others and tests != environment else environment


def _is_complete(means: pd.DataFrame) -> pd.Series:
    return means["n"] == means["planned"]


def _means(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over the test environments of each row of a dataset, by label."""
    return frame[is_mean(frame)].set_index("label", drop=False)


def _dataset_blocks(dataset: str, frame: pd.DataFrame, board: Leaderboard) -> list[Block]:
    """Return a table of the dataset's metric, and one of the predictor's own metrics if there are any."""
    methods = _means(frame[frame["kind"] == METHOD])
    metric = str(methods["metric"].iloc[0])
    order: Any = {"ascending": not board.higher.get(metric, True), "key": lambda m: m.map(_rounded)}
    methods = methods.sort_values("mean", kind="stable", **order)
    apart = _means(frame[frame["kind"] == TRANSDUCTIVE])
    apart = apart.sort_values("mean", kind="stable", **order)
    grey = _means(frame[~frame["kind"].isin((METHOD, TRANSDUCTIVE))])
    places = list(frame[COLUMN].drop_duplicates().itertuples(index=False, name=None))
    tested = [place for place in places if place[1]]
    if len(tested) == 2:  # the mean over a single environment would repeat its column
        tested = tested[:1]
    unit = f"{metric}{' (%)' if is_proportion(metric) else ''}"
    title = f"{dataset}: {unit}" if metric else f"{dataset}: nothing recorded yet"
    tables = [_block(title, tested, methods, grey, frame, board)]
    if len(apart):
        tables.append(_block(f"{title}, {APART}", tested, apart, grey[:0], frame, board))
    if of_predictor := [place for place in places if not place[1]]:
        grey = grey[grey.index.isin(frame.loc[frame["environment"] == "", "label"])]
        title = f"{dataset}: of the predictor itself"
        table = _block(title, of_predictor, pd.concat([methods, apart]), grey, frame, board)
        tables.append(replace(table, metrics=len(of_predictor)))
    return tables


def _block(
    title: str,
    places: Sequence[tuple[str, str, str]],
    means: pd.DataFrame,
    grey: pd.DataFrame,
    frame: pd.DataFrame,
    board: Leaderboard,
) -> Block:
    """Return a block of a dataset's numbers, a column for each of `places`, then the leaderboard's last
    columns.

    The rows are the complete ones of `means` in its order, then its others, then those of `grey`.
    """
    complete = _is_complete(means)
    labels = [str(x) for x in (*means.index[complete], *means.index[~complete])]
    cells = frame.set_index(["label", *COLUMN])
    by_place = cells.to_dict(orient="index")
    by_label = pd.concat([means, grey]).to_dict(orient="index")
    rows = []
    for label in [*labels, *grey.index]:
        row = [str(label)]
        for place in places:
            cell = by_place.get((label, *place), {"n": 0})
            row.append(number(cell["mean"], cell["stderr"], place[2]) if cell["n"] else "-")
        rows.append(row)
    columns = {c.name: [c.text(by_label[row[0]]) for row in rows] for c in board.columns}
    columns = {name: texts for name, texts in columns.items() if any(texts)}
    rows = [[*row, *texts] for row, *texts in zip(rows, *columns.values(), strict=True)]
    ranked, best, near, second = int(complete.sum()), set(), set(), set()
    for c, place in enumerate(places, 1):
        numbers = cells.reindex([(label, *place) for label in labels[:ranked]])
        values, higher = numbers["mean"].tolist(), board.higher.get(place[2], True)
        best_here = _best(values, c, higher)
        near |= _near(numbers, best_here, c)
        second |= _second(values, c, higher)
        best |= best_here
    names = [*(_header(place, places) for place in places), *columns]
    return Block(title, ["algorithm", *names], rows, ranked, best, near, second, len(grey))


def _rounded(mean: float) -> float:
    """Return a mean in 12 digits, so that equal values are equal however they were added up."""
    return float(f"{mean:.12g}")


def _best(means: Sequence[float], column: int, higher: bool) -> set[tuple[int, int]]:
    """(row, column) of the best of at least two values."""
    rounded = [_rounded(m) for m in means]
    finite = [m for m in rounded if not math.isnan(m)]
    if len(rounded) < 2 or not finite:
        return set()
    value = max(finite) if higher else min(finite)
    return {(row, column) for row, mean in enumerate(rounded) if mean == value}


def _second(means: Sequence[float], column: int, higher: bool) -> set[tuple[int, int]]:
    """(row, column) of the runner-up of at least three values; none where several are the best."""
    best = {row for row, _ in _best(means, column, higher)}
    if len(best) != 1 or len(means) < 3:
        return set()
    return _best([math.nan if r in best else m for r, m in enumerate(means)], column, higher)


def _near(numbers: pd.DataFrame, best: set[tuple[int, int]], column: int) -> set[tuple[int, int]]:
    """(row, column) of the values no further from a best one than its standard error."""
    means = numbers["mean"].to_numpy(float)
    return {
        (int(row), column)
        for place, _ in best
        for row in np.flatnonzero(np.abs(means - means[place]) <= numbers["stderr"].iloc[place])
    } - best


@dataclass(frozen=True)
class _Overall:
    """The methods over several datasets."""

    means: dict[str, pd.DataFrame]
    """The mean of each row over test environments, by dataset; see `_means`."""
    labels: list[str]
    """The labels, first the ones that are complete on every dataset."""
    full: list[str]
    """The labels that are complete on every dataset, the best mean rank first."""
    rank: "pd.Series[float]"
    share: "pd.Series[float] | None"
    """The mean over the datasets that are measured in proportions, if there are any."""


def _overall(board: Leaderboard, datasets: Sequence[str]) -> _Overall:
    """Sum up the methods over datasets; labels that are complete on all are ranked, ties share a rank."""
    methods = board.frame[board.frame["kind"] == METHOD]
    by_dataset = dict(list(methods.groupby("dataset", sort=False)))
    means = {name: _means(by_dataset[name]) for name in datasets}
    labels = [str(label) for label in methods["label"].unique()]
    complete = {
        name: _is_complete(m).reindex(labels, fill_value=False) for name, m in means.items()
    }
    full = [label for label in labels if all(c[label] for c in complete.values())]
    ranks, shares = [], []
    for name, of_dataset in means.items():
        metric = str(of_dataset["metric"].iloc[0])
        values = of_dataset["mean"].map(_rounded).reindex(labels)
        up = board.higher.get(metric, True)
        ranks.append(values[full].rank(ascending=not up, na_option="bottom"))
        if is_proportion(metric):
            shares.append(values.where(complete[name]))
    rank = pd.concat(ranks, axis=1).mean(axis=1)
    share = pd.concat(shares, axis=1).mean(axis=1, skipna=False) if shares else None
    full.sort(key=lambda label: rank[label])
    order = [*full, *(label for label in labels if label not in full)]
    return _Overall(means, order, full, rank, share)


def _share(value: float) -> str:
    return "-" if math.isnan(value) else number(value, math.nan, "accuracy")


def _by_shift(board: Leaderboard) -> Block:
    """Return the mean (where all metrics are proportions) or the mean rank over the datasets of
    each shift.
    """
    by_shift: dict[str, list[str]] = {}
    for dataset in board.frame["dataset"].unique():
        by_shift.setdefault(board.shifts.get(dataset) or "not recorded", []).append(dataset)
    everywhere = _overall(board, list(board.frame["dataset"].unique()))
    order = everywhere.labels
    header, columns, best = ["algorithm"], [order], set()
    for shift, datasets in by_shift.items():
        over = _overall(board, datasets)
        metrics = [str(means["metric"].iloc[0]) for means in over.means.values()]
        if over.share is not None and all(map(is_proportion, metrics)):
            header.append(f"{shift} (%)")
            columns.append([_share(over.share[label]) for label in order])
            values, up = over.share, True
        else:
            header.append(f"{shift} (rank)")
            ranked = over.rank.reindex(order)
            columns.append([f"{v:.2f}" if not math.isnan(v) else "-" for v in ranked])
            values, up = over.rank, False
        best |= _best([float(values[x]) for x in everywhere.full], len(header) - 1, up)
    rows = [list(row) for row in zip(*columns, strict=True)]
    title = "By kind of shift: means over its datasets"
    return Block(title, header, rows, len(everywhere.full), best)


def _summary(board: Leaderboard) -> Block:
    """Return every dataset's mean, the mean of these where they are proportions, and the mean rank."""
    over = _overall(board, list(board.frame["dataset"].unique()))
    rank, share, full = over.rank, over.share, over.full
    rest = board.frame[board.frame["kind"] != METHOD]
    grey = [str(label) for label in rest["label"].unique()]
    beside = {name: _means(rest[rest["dataset"] == name]) for name in over.means}
    rows = []
    for label in [*over.labels, *grey]:
        row = [str(label)]
        for means in (beside if label in grey else over.means).values():
            there = label in means.index and means.loc[label, "n"]
            row.append(number(*means.loc[label, ["mean", "stderr", "metric"]]) if there else "-")
        if share is not None:
            row.append("-" if label in grey else _share(share[label]))
        rows.append([*row, f"{rank[label]:.2f}" if label in full else "-"])
    shares = ["mean (%)"] if share is not None else []
    header = ["algorithm", *over.means, *shares, "mean rank"]
    values = [
        (
            [of_dataset["mean"][x] for x in full],
            board.higher.get(str(of_dataset["metric"].iloc[0]), True),
        )
        for of_dataset in over.means.values()
    ]
    values += [([share[x] for x in full], True)] if share is not None else []
    values.append(([rank[x] for x in full], False))
    best, second = (
        set().union(*(mark(means, c, up) for c, (means, up) in enumerate(values, 1)))
        for mark in (_best, _second)
    )
    return Block(OVER_DATASETS, header, rows, len(full), best, second=second, grey=len(grey))
