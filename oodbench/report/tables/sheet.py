"""A leaderboard in rows and columns: one block a dataset, then over the datasets."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from oodbench.metrics import is_proportion
from oodbench.report.cells import MEAN, METHOD, TRANSDUCTIVE
from oodbench.report.numbers import Kind, Number, with_unit
from oodbench.report.tables import Block, Cell, Sheet, Shows
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


def leaderboard_sheet(
    tables: Tables, rule: str | None = None, metric: str | None = None, also: Sequence[str] = ()
) -> Sheet:
    """The leaderboard of runs, with columns of the metrics `also`; raises UserError for unknown names."""
    return sheet(leaderboard_of(judge(tables, rule), metric, also))


def sheet(board: Leaderboard) -> Sheet:
    """The tables of a leaderboard."""
    shown, frame = blocks(board), board.frame
    marks = ["Bold: the best value."] * any(block.best for block in shown)
    marks += ["Underlined: no further from it than its standard error."] * any(
        block.near for block in shown
    )
    apart = "Predictions of transductive methods depend on the other test inputs, too."
    has_apart = TRANSDUCTIVE in set(frame["kind"])
    notes = (*board.notes, *[apart] * has_apart, *board.findings)
    paper = next((block for block in shown if block.shows is Shows.OVER_DATASETS), shown[0])
    # declared last columns that the frame lacks, as texts
    new = [c for c in board.columns if c.name not in frame and c.needs not in board.also]
    rows = frame.to_dict(orient="records") if new else []
    frame = frame.assign(**{c.name: [str(c.cell(row)) for row in rows] for c in new})
    return Sheet(shown, notes, board.remarks, frame, (" ".join(marks),) * bool(marks), paper)


def blocks(board: Leaderboard) -> list[Block]:
    """One or two blocks per dataset; with several datasets also their means."""
    datasets = [_Dataset(str(d), f, board) for d, f in board.frame.groupby("dataset", sort=False)]
    shown = [block for dataset in datasets for block in dataset.blocks()]
    return shown if len(datasets) == 1 else [*shown, _over_datasets(board, datasets)]


class _Marked(NamedTuple):
    """The rows of a column that are marked."""

    best: set[int]
    near: set[int]
    second: set[int]


class _Dataset:
    """The numbers of a dataset, and the tables of them."""

    def __init__(self, name: str, frame: pd.DataFrame, board: Leaderboard) -> None:
        self.name, self.frame, self.board = name, frame, board
        means = frame[is_mean(frame)].set_index("label", drop=False)
        self.metric = str(means.loc[means["kind"] == METHOD, "metric"].iloc[0])
        self.higher = board.higher.get(self.metric, True)
        self.methods, self.apart = (
            means[means["kind"] == kind].sort_values(
                "mean", kind="stable", ascending=not self.higher, key=lambda m: m.map(rounded)
            )
            for kind in (METHOD, TRANSDUCTIVE)
        )
        self.grey = means[~means["kind"].isin((METHOD, TRANSDUCTIVE))]
        entries = frame.assign(told=beats_constant(frame)).to_dict("records")
        self.entries = {tuple(e[name] for name in ("label", *COLUMN)): e for e in entries}
        self.means = {key[0]: e for key, e in self.entries.items() if key[1:3] == ("", MEAN)}

    def blocks(self) -> list[Block]:
        """A table of the dataset's metric, and one of the predictor's own metrics if there are any."""
        places = list(self.frame[COLUMN].drop_duplicates().itertuples(index=False, name=None))
        tested = [place for place in places if place[1]]
        if len(tested) == 2:  # the mean over a single environment would repeat its column
            tested = tested[:1]
        title = f"{self.name}: {with_unit(self.metric) or 'nothing recorded yet'}"
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
        labels = [*means.index[complete], *means.index[~complete], *grey.index]
        ranked, header, fits = int(complete.sum()), ["algorithm"], [0]
        cells: list[list[Cell]] = [labels]
        for place in places:
            fits += [len(header)] * (place[1] == MEAN or len(places) == 1)
            header.append(_header(place, places))
            cells.append([value_cell(self.entries.get((label, *place))) for label in labels])
        for column in self.board.columns:
            last = [column.cell(self.means[label]) for label in labels]
            if any(last):
                fits += [len(header)] * column.fits
                header.append(column.name)
                cells.append(last)
        marks = [self._marked(labels[:ranked], place) for place in places]
        return Block(
            title,
            header,
            list(map(list, zip(*cells, strict=True))),
            ranked,
            *_marks(marks),
            grey=len(grey),
            shows=Shows.DATASET,
            dataset=self.name,
            fits=fits,
        )

    def _marked(self, labels: Sequence[str], place: Any) -> _Marked:
        nothing: dict[Any, Any] = {"mean": math.nan, "stderr": math.nan, "told": True}
        rows = [self.entries.get((label, *place), nothing) for label in labels]
        means, errors, told = ([row[name] for row in rows] for name in nothing)
        marked = _best_and_second(means, self.board.higher.get(place[2], True), told)
        for row in marked.best:
            gaps = np.abs(np.array(means) - means[row])
            marked.near.update(map(int, np.flatnonzero(gaps <= errors[row])))
        return marked._replace(near=marked.near - marked.best)


def _marks(columns: Sequence[_Marked]) -> tuple[Marks, Marks, Marks]:
    """(row, column) of the best values, those near them, and the runners-up; the labels are column 0."""
    best, near, second = (
        {(row, c) for c, marked in enumerate(columns, 1) for row in marked[kind]}
        for kind in range(3)
    )
    return best, near, second


def _header(column: tuple[str, str, str], columns: Sequence[tuple[str, str, str]]) -> str:
    tests, environment, metric = column
    if not environment:
        return metric
    others = [c for c in columns if c[1] == environment and c != column and c[0]]
    return f"{environment} (of {tests})" if others and tests != environment else environment


def value_cell(row: Mapping[Any, Any] | None) -> Cell:
    """The mean in a row of `Leaderboard.frame`; `-` where no trial is complete."""
    return Number(row["mean"], row["stderr"], metric=row["metric"]) if row and row["n"] else "-"


def is_complete(means: pd.DataFrame) -> "pd.Series[bool]":
    """Whether each row has all of its planned trials."""
    return means["n"] == means["planned"]


def rounded(mean: float) -> float:
    """A mean in 12 digits, so that equal values are equal however they were added up."""
    return float(f"{mean:.12g}")


def _best(values: Sequence[float], higher: bool) -> set[int]:
    """The places of the best of at least two values."""
    finite = [value for value in values if not math.isnan(value)]
    if len(values) < 2 or not finite:
        return set()
    best = max(finite) if higher else min(finite)
    return {place for place, value in enumerate(values) if value == best}


def _best_and_second(means: Sequence[float], higher: bool, told: Sequence[bool]) -> _Marked:
    """The best values that are `told` from the constant answer, and the runner-up.

    A runner-up stands below a single best of at least three values; below none where that is not told.
    """
    values = [rounded(mean) for mean in means]
    best = _best(values, higher)
    shown = {place for place in best if told[place]}
    if len(best) != 1 or len(means) < 3 or not shown:
        return _Marked(shown, set(), set())
    others = [math.nan if place in best else value for place, value in enumerate(values)]
    return _Marked(shown, set(), _best(others, higher))


def _over_datasets(board: Leaderboard, datasets: Sequence[_Dataset]) -> Block:
    """Every dataset's mean, the mean of these where they are proportions, and the mean rank.

    Methods that are complete on all datasets are ranked, the best mean rank first; ties share a rank.
    """
    first = board.frame.drop_duplicates("label").set_index("label", drop=False)
    is_method = board.frame["kind"] == METHOD
    labels = [str(x) for x in board.frame.loc[is_method, "label"].unique()]
    grey = [str(x) for x in board.frame.loc[~is_method, "label"].unique()]
    complete = [is_complete(d.methods).reindex(labels, fill_value=False) for d in datasets]
    full = [label for label in labels if all(of_dataset[label] for of_dataset in complete)]
    rank = _mean_ranks(datasets, full)
    full.sort(key=lambda label: rank[label])
    shares = [
        d.methods.loc[is_complete(d.methods), "mean"].map(rounded).reindex(labels)
        for d in datasets
        if is_proportion(d.metric)
    ]
    share = pd.concat(shares, axis=1).mean(axis=1, skipna=False) if shares else None
    last = [column for column in board.columns if column.overall]
    rows: list[list[Cell]] = []
    for label in [*full, *(x for x in labels if x not in full), *grey]:
        of_datasets = (d.means.get(label) for d in datasets)
        kinds = [None if e and (e["kind"] == METHOD) == (label in grey) else e for e in of_datasets]
        row: list[Cell] = [label, *map(value_cell, kinds)]
        if share is not None:
            mean = share.get(label, math.nan)
            row.append("-" if math.isnan(mean) else Number(mean, metric="accuracy"))
        row.append(Number(rank.get(label, math.nan), kind=Kind.RANK))
        rows.append([*row, *(column.cell(first.loc[label].to_dict()) for column in last)])
    header = ["algorithm", *(d.name for d in datasets), *["mean (%)"] * bool(shares), "mean rank"]
    header += [column.name for column in last]
    fits = (0, *range(1 + len(datasets), len(header)))
    marks = _marks(_overall_marks(datasets, full, rank, share))
    title, shows = "All datasets: means over test environments", Shows.OVER_DATASETS
    return Block(title, header, rows, len(full), *marks, grey=len(grey), shows=shows, fits=fits)


def _mean_ranks(datasets: Sequence[_Dataset], full: list[str]) -> "pd.Series[float]":
    ranks = []
    for d in datasets:
        values = d.methods["mean"].map(rounded).reindex(full)
        ranks.append(values.rank(ascending=not d.higher, na_option="bottom"))
    return pd.concat(ranks, axis=1).mean(axis=1)


def _overall_marks(
    datasets: Sequence[_Dataset],
    full: list[str],
    rank: "pd.Series[float]",
    share: "pd.Series[float] | None",
) -> list[_Marked]:
    """The best and second values; over datasets of rows that are told from the constant answer on one."""
    told = [beats_constant(d.methods).reindex(full) for d in datasets]
    anywhere = pd.concat(told, axis=1).any(axis=1)
    columns = [(d.methods["mean"], d.higher, t) for d, t in zip(datasets, told, strict=True)]
    columns += [(share, True, anywhere)] if share is not None else []
    columns.append((rank, False, anywhere))
    return [_best_and_second(m[full].tolist(), up, t[full].tolist()) for m, up, t in columns]
