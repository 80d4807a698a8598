"""A leaderboard in rows and columns: one block a dataset, then over the datasets."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from oodbench.metrics import is_proportion
from oodbench.report.cells import MEAN, METHOD, TRANSDUCTIVE
from oodbench.report.numbers import Kind, Number
from oodbench.report.tables import Block, Cell, Column, Sheet, Shows
from oodbench.report.tables.leaderboard import (
    COLUMN,
    Leaderboard,
    beats_constant,
    is_mean,
    leaderboard_of,
)
from oodbench.results.tables import Tables
from oodbench.selection import judge

Marks = set[tuple[int, int]]
Entry = dict[str, Any]
"""A row of `Leaderboard.frame`."""


def leaderboard_sheet(
    tables: Tables, rule: str | None = None, metric: str | None = None, also: Sequence[str] = ()
) -> Sheet:
    """The leaderboard of runs, with columns of the metrics `also`; raises UserError for unknown names."""
    return sheet(leaderboard_of(judge(tables, rule), metric, also))


def sheet(board: Leaderboard) -> Sheet:
    """The tables of a leaderboard."""
    shown = blocks(board)
    marks = []
    if any(block.best for block in shown):
        marks.append("Bold: the best value.")
    if any(block.near for block in shown):
        marks.append("Underlined: no further from it than its standard error.")
    apart = "Predictions of transductive methods depend on the other test inputs, too."
    has_apart = board.frame["kind"].eq(TRANSDUCTIVE).any()
    notes = (*board.notes, *[apart] * bool(has_apart), *board.findings)
    paper = next((block for block in shown if block.shows is Shows.OVER_DATASETS), shown[0])
    marked = (" ".join(marks),) if marks else ()
    return Sheet(shown, notes, board.remarks, _with_declared(board), marked, paper)


def _with_declared(board: Leaderboard) -> pd.DataFrame:
    """The frame with the declared last columns that are not in it, as texts."""
    new = [c for c in board.columns if c.name not in board.frame and c.needs not in board.also]
    rows = board.frame.to_dict(orient="records") if new else []
    return board.frame.assign(**{c.name: [str(c.cell(row)) for row in rows] for c in new})


def blocks(board: Leaderboard) -> list[Block]:
    """One or two blocks per dataset; with several datasets also their means."""
    datasets = [_Dataset(str(d), f, board) for d, f in board.frame.groupby("dataset", sort=False)]
    shown = [block for dataset in datasets for block in dataset.blocks()]
    return shown if len(datasets) == 1 else [*shown, _over_datasets(board, datasets)]


class _Dataset:
    """The numbers of a dataset, and the tables of them."""

    def __init__(self, name: str, frame: pd.DataFrame, board: Leaderboard) -> None:
        self.name, self.frame, self.board = name, frame, board
        self.means = frame[is_mean(frame)].set_index("label", drop=False)
        kind = self.means["kind"]
        self.methods = self._sorted(self.means[kind == METHOD])
        self.apart = self._sorted(self.means[kind == TRANSDUCTIVE])
        self.grey = self.means[~kind.isin((METHOD, TRANSDUCTIVE))]
        self.metric = str(self.methods["metric"].iloc[0])
        keys = zip(*(frame[name] for name in ("label", *COLUMN)), strict=True)
        self.entries = dict(zip(keys, frame.to_dict("records"), strict=True))
        self.by_label = {
            key[0]: entry for key, entry in self.entries.items() if key[1:3] == ("", MEAN)
        }
        self.told = dict(zip(self.entries, beats_constant(frame), strict=True))

    @property
    def higher(self) -> bool:
        """Whether a higher value is better."""
        return self.board.higher.get(self.metric, True)

    def _sorted(self, means: pd.DataFrame) -> pd.DataFrame:
        up = bool(len(means)) and self.board.higher.get(str(means["metric"].iloc[0]), True)
        return means.sort_values(
            "mean", kind="stable", ascending=not up, key=lambda m: m.map(rounded)
        )

    def blocks(self) -> list[Block]:
        """A table of the dataset's metric, and one of the predictor's own metrics if there are any."""
        places = list(self.frame[COLUMN].drop_duplicates().itertuples(index=False, name=None))
        tested = [place for place in places if place[1]]
        if len(tested) == 2:  # the mean over a single environment would repeat its column
            tested = tested[:1]
        unit = f"{self.metric}{' (%)' if is_proportion(self.metric) else ''}"
        title = f"{self.name}: {unit if self.metric else 'nothing recorded yet'}"
        tables = [self._block(title, tested, self.methods, self.grey)]
        if len(self.apart):
            apart = f"{title}, of transductive methods"
            tables.append(self._block(apart, tested, self.apart, self.grey[:0]))
        if of_predictor := [place for place in places if not place[1]]:
            own = self.frame["environment"].eq("") & self.frame["mean"].notna()
            grey = self.grey[self.grey.index.isin(self.frame.loc[own, "label"])]  # no forest
            title = f"{self.name}: of the predictor itself"
            rows = pd.concat([self.methods, self.apart])
            tables.append(self._block(title, of_predictor, rows, grey))
        return tables

    def _block(
        self, title: str, places: Sequence[Any], means: pd.DataFrame, grey: pd.DataFrame
    ) -> Block:
        """A column for each of `places`, then the leaderboard's last columns.

        The rows are the complete ones of `means` in its order, then its others, then those of `grey`.
        """
        complete = is_complete(means)
        labels = [str(x) for x in (*means.index[complete], *means.index[~complete])]
        every, ranked = [*labels, *map(str, grey.index)], int(complete.sum())
        rows = [[self._cell(label, place) for place in places] for label in every]
        last = [(c, [c.cell(self.by_label[label]) for label in every]) for c in self.board.columns]
        last = [(column, cells) for column, cells in last if any(cells)]
        columns = [Column("algorithm", Shows.LABEL)]
        for place in places:
            decides = place[1] == MEAN or len(places) == 1
            columns.append(Column(_header(place, places), Shows.RANKED_BY if decides else None))
        columns += [Column(column.name, column.shows) for column, _ in last]
        extra = [cells for _, cells in last]
        cells = [[x, *row, *more] for x, row, *more in zip(every, rows, *extra, strict=True)]
        marks = self._marks(labels[:ranked], places)
        block = Block(title, columns, cells, ranked, *marks, len(grey))
        return replace(block, shows=Shows.DATASET, dataset=self.name)

    def _cell(self, label: str, place: Any) -> Cell:
        entry = self.entries.get((label, *place))
        if entry is None or not entry["n"]:
            return "-"
        return Number(entry["mean"], entry["stderr"], metric=entry["metric"])

    def _marks(self, ranked: Sequence[str], places: Sequence[Any]) -> tuple[Marks, Marks, Marks]:
        marks: tuple[Marks, Marks, Marks] = set(), set(), set()
        for c, place in enumerate(places, 1):
            keys = [(label, *place) for label in ranked]
            found = [self.entries.get(key) for key in keys]
            means = np.array([e["mean"] if e else math.nan for e in found])
            errors = [e["stderr"] if e else math.nan for e in found]
            told = [self.told.get(key, True) for key in keys]
            higher = self.board.higher.get(place[2], True)
            best, second = _best_and_second(means.tolist(), c, higher, told)
            near = {
                (int(row), c)
                for place, _ in best
                for row in np.flatnonzero(np.abs(means - means[place]) <= errors[place])
            } - best
            for known, new in zip(marks, (best, near, second), strict=True):
                known |= new
        return marks


def _header(column: tuple[str, str, str], columns: Sequence[tuple[str, str, str]]) -> str:
    tests, environment, metric = column
    if not environment:
        return metric
    others = [c for c in columns if c[1] == environment and c != column and c[0]]
    return f"{environment} (of {tests})" if others and tests != environment else environment


def is_complete(means: pd.DataFrame) -> "pd.Series[bool]":
    """Whether each row has all of its planned trials."""
    return means["n"] == means["planned"]


def rounded(mean: float) -> float:
    """A mean in 12 digits, so that equal values are equal however they were added up."""
    return float(f"{mean:.12g}")


def _best(means: Sequence[float], column: int, higher: bool) -> Marks:
    """(row, column) of the best of at least two values."""
    values = [rounded(m) for m in means]
    finite = [m for m in values if not math.isnan(m)]
    if len(values) < 2 or not finite:
        return set()
    value = max(finite) if higher else min(finite)
    return {(row, column) for row, mean in enumerate(values) if mean == value}


def _best_and_second(
    means: Sequence[float], column: int, higher: bool, told: Iterable[bool]
) -> tuple[Marks, Marks]:
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


def _over_datasets(board: Leaderboard, datasets: Sequence[_Dataset]) -> Block:
    """Every dataset's mean, the mean of these where they are proportions, and the mean rank.

    Methods that are complete on all datasets are ranked, the best mean rank first; ties share a rank.
    """
    labels = [str(x) for x in board.frame.loc[board.frame["kind"] == METHOD, "label"].unique()]
    methods = [d.methods[d.methods["label"].isin(labels)] for d in datasets]
    complete = [is_complete(m).reindex(labels, fill_value=False) for m in methods]
    full = [label for label in labels if all(of_dataset[label] for of_dataset in complete)]
    rank = _mean_ranks(datasets, full)
    full.sort(key=lambda label: rank[label])
    share = _mean_shares(datasets, labels)
    rest = board.frame.loc[board.frame["kind"] != METHOD, "label"].unique()
    grey = [str(label) for label in rest]
    last = [column for column in board.columns if column.overall]
    first = board.frame.drop_duplicates("label").set_index("label", drop=False)
    rows: list[list[Cell]] = []
    for label in [*full, *(x for x in labels if x not in full), *grey]:
        row: list[Cell] = [label, *(_mean_of(d, label, label in grey) for d in datasets)]
        if share is not None:
            mean = share.get(label, math.nan)
            row.append("-" if math.isnan(mean) else Number(mean, metric="accuracy"))
        row.append(Number(rank.get(label, math.nan), kind=Kind.RANK))
        rows.append([*row, *(column.cell(first.loc[label].to_dict()) for column in last)])
    columns = [Column("algorithm", Shows.LABEL), *(Column(d.name) for d in datasets)]
    if share is not None:
        columns.append(Column("mean (%)", Shows.RANKED_BY))
    columns.append(Column("mean rank", Shows.RANKED_BY))
    columns += [Column(column.name, column.shows) for column in last]
    best, second = _overall_marks(datasets, full, rank, share)
    title, shows = "All datasets: means over test environments", Shows.OVER_DATASETS
    ranked = len(full)
    return Block(title, columns, rows, ranked, best, set(), second, len(grey), shows=shows)


def _mean_of(dataset: _Dataset, label: str, is_grey: bool) -> Cell:
    entry = dataset.by_label.get(label)
    if entry is None or (entry["kind"] == METHOD) == is_grey or not entry["n"]:
        return "-"
    return Number(entry["mean"], entry["stderr"], metric=entry["metric"])


def _mean_ranks(datasets: Sequence[_Dataset], full: list[str]) -> "pd.Series[float]":
    ranks = []
    for d in datasets:
        values = d.methods["mean"].map(rounded).reindex(full)
        ranks.append(values.rank(ascending=not d.higher, na_option="bottom"))
    return pd.concat(ranks, axis=1).mean(axis=1)


def _mean_shares(datasets: Sequence[_Dataset], labels: list[str]) -> "pd.Series[float] | None":
    """The mean of complete rows over the datasets that are measured in proportions, if there are any."""
    shares = []
    for d in datasets:
        if is_proportion(d.metric):
            whole = d.methods.loc[is_complete(d.methods), "mean"]
            shares.append(whole.map(rounded).reindex(labels))
    return pd.concat(shares, axis=1).mean(axis=1, skipna=False) if shares else None


def _overall_marks(
    datasets: Sequence[_Dataset],
    full: list[str],
    rank: "pd.Series[float]",
    share: "pd.Series[float] | None",
) -> tuple[Marks, Marks]:
    """The best and second values; over datasets of rows that are told from the constant answer on one."""
    told = [beats_constant(d.methods).reindex(full) for d in datasets]
    anywhere = pd.concat(told, axis=1).any(axis=1)
    columns = [(d.methods["mean"], d.higher, t) for d, t in zip(datasets, told, strict=True)]
    columns += [(share, True, anywhere)] if share is not None else []
    columns.append((rank, False, anywhere))
    best: Marks = set()
    second: Marks = set()
    for c, (numbers, higher, clear) in enumerate(columns, 1):
        shown = _best_and_second(numbers[full].tolist(), c, higher, clear[full])
        best, second = best | shown[0], second | shown[1]
    return best, second
