"""A leaderboard as texts in rows and columns: one block a dataset, then over the datasets."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from oodbench.metrics import is_proportion
from oodbench.notes import Note
from oodbench.report.numbers import number
from oodbench.report.tables import OVER_DATASETS, Block, Sheet
from oodbench.report.tables.leaderboard import (
    COLUMN,
    METHOD,
    TRANSDUCTIVE,
    Column,
    Leaderboard,
    beats_constant,
    is_mean,
    leaderboard_by_rule,
    leaderboard_of,
)
from oodbench.results.tables import Tables, subset
from oodbench.selection import Judged, judged

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
    frames: Tables, rule: str | None = None, metric: str | None = None, also: Sequence[str] = ()
) -> Sheet:
    """Return the leaderboard of the runs of `joined`, with columns of the metrics `also`.

    Raises UserError for unknown names.
    """
    one = judged(frames, rule)
    return sheet_of(leaderboard_of(one, metric), one, also)


def sheet_of(board: Leaderboard, one: Judged, also: Sequence[str]) -> Sheet:
    """Return the sheet of a leaderboard of judged runs, with columns of the metrics `also`."""
    return sheet(with_further_metrics(board, one, list(dict.fromkeys(also))))


def blocks(board: Leaderboard) -> list[Block]:
    """Return one or two blocks per dataset; with several datasets also their means."""
    numbers = dict(list(board.frame.groupby("dataset", sort=False)))
    tables = []
    for name, frame in numbers.items():
        tables += _dataset_blocks(str(name), frame, board)
    if len(numbers) == 1:
        return tables
    return [*tables, _with_columns(_summary(board), board)]


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
    apart = _means(frame[frame["kind"] == TRANSDUCTIVE]).sort_values("mean", kind="stable", **order)
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
        own = frame["environment"].eq("") & frame["mean"].notna()  # a forest has no such metrics
        grey = grey[grey.index.isin(frame.loc[own, "label"])]
        title = f"{dataset}: of the predictor itself"
        rows = pd.concat([methods, apart])
        tables.append(_block(title, of_predictor, rows, grey, frame, board))
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
        best_here, second_here = _best_and_second(values, c, higher, beats_constant(numbers))
        near |= _near(numbers, best_here, c)
        second |= second_here
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


def _best_and_second(
    means: Sequence[float], column: int, higher: bool, told: Iterable[bool]
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """(row, column) of the best values that are `told` from the constant answer, and of the runner-up.

    A runner-up stands below a single best of at least three values; below none where that is not told.
    """
    best = _best(means, column, higher)
    rows = {row for row, _ in best}
    shown = {(row, column) for row, clear in enumerate(told) if clear and row in rows}
    if len(best) != 1 or len(means) < 3 or not shown:
        return shown, set()
    others = [math.nan if r in rows else m for r, m in enumerate(means)]
    return shown, _best(others, column, higher)


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

    @property
    def told(self) -> "pd.Series[bool]":
        """Whether each of the `full` labels is told from the constant answer on some dataset."""
        told = [beats_constant(of_dataset)[self.full] for of_dataset in self.means.values()]
        return pd.concat(told, axis=1).any(axis=1)


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
    columns: list[tuple[pd.Series[float], bool, pd.Series[bool]]] = []
    for of_dataset in over.means.values():
        higher = board.higher.get(str(of_dataset["metric"].iloc[0]), True)
        columns.append((of_dataset["mean"], higher, beats_constant(of_dataset)))
    columns += [(share, True, over.told)] if share is not None else []
    columns.append((rank, False, over.told))
    best: set[tuple[int, int]] = set()
    second: set[tuple[int, int]] = set()
    for c, (numbers, higher, told) in enumerate(columns, 1):
        shown = _best_and_second(numbers[full].tolist(), c, higher, told[full])
        best, second = best | shown[0], second | shown[1]
    return Block(OVER_DATASETS, header, rows, len(full), best, second=second, grey=len(grey))


def with_further_metrics(shown: Leaderboard, one: Judged, metrics: Sequence[str]) -> Leaderboard:
    """Return the board with a column for each of these metrics, of the same runs at the same steps.

    A cell has the row's mean over test environments; datasets that lack the metric have none. Raises
    UserError for a metric that no dataset has.
    """
    runs, recorded = one.runs, one.frames.records[["id", "metric"]].astype(object)
    frame, notes, also = shown.frame, list(shown.notes), list(shown.also)
    for metric in metrics:
        ids = recorded.loc[recorded["metric"] == metric, "id"].unique()
        datasets = runs.loc[runs["id"].isin(ids), "dataset_label"].unique()
        kept = runs["dataset_label"].isin(datasets) if len(datasets) else runs["id"].notna()
        of_runs = subset(one.frames, runs[kept])
        other = leaderboard_by_rule(judged(of_runs, one.rule), metric)
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
