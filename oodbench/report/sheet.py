"""A leaderboard as texts in rows and columns: one block a dataset, then over the datasets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from oodbench.metrics import is_proportion
from oodbench.report.leaderboard import COLUMN, Leaderboard, is_average
from oodbench.report.numbers import number
from oodbench.report.references import METHOD, TRANSDUCTIVE

APART = "of transductive methods"
"""The end of the title of the table of methods whose predictions depend on test inputs."""
FROM = "from"
"""The column that says, beside a board, where a row's runs are from."""


@dataclass(frozen=True)
class Block:
    """A table of texts, and which of its cells are marked."""

    title: str
    header: list[str]
    rows: list[list[str]]
    ranked: int
    """The number of first rows that are complete, the best one first; others are not ranked."""
    best: set[tuple[int, int]] = field(default_factory=set)
    """(row, column) of the best values."""
    near: set[tuple[int, int]] = field(default_factory=set)
    """(row, column) of the values within the best one's standard error."""
    grey: int = 0
    """The number of last rows that are no methods: the constant answer and ceilings."""
    one_metric: bool = True
    """Whether the columns of numbers are of one metric; else each but the last has its own."""
    keys: int = 1
    """The number of first columns that name a row."""

    @property
    def grey_places(self) -> list[tuple[int, int]]:
        """(row, column) of the cells of the grey rows."""
        rows = range(len(self.rows) - self.grey, len(self.rows))
        return [(row, column) for row in rows for column in range(len(self.header))]


@dataclass(frozen=True)
class Sheet:
    """A leaderboard as it is printed: tables of texts, notes on them, and the numbers behind."""

    blocks: list[Block]
    notes: tuple[str, ...]
    """The notes that belong into a caption."""
    remarks: tuple[str, ...]
    """The notes that a paper does not repeat: counts and code."""
    frame: pd.DataFrame
    """The numbers behind the tables, a row each."""
    marks: tuple[str, ...] = ()
    """The notes on what is bold and underlined, for formats that show it."""


def sheet(board: Leaderboard) -> Sheet:
    """The sheet of a leaderboard."""
    found = blocks(board)
    marks = []
    if any(block.best for block in found):
        marks.append("Bold: the best value.")
    if any(block.near for block in found):
        marks.append("Underlined: no further from it than its standard error.")
    apart = []
    if any(block.title.endswith(APART) for block in found):
        apart.append("Predictions of transductive methods depend on the other test inputs, too.")
    notes = (*board.notes, *apart, *board.findings)
    frame = board.frame
    if board.origins:
        frame = frame.assign(**{FROM: frame["label"].map(board.origins).fillna("")})
    return Sheet(found, notes, board.remarks, frame, (" ".join(marks),) if marks else ())


def blocks(board: Leaderboard) -> list[Block]:
    """A block or two for each dataset; over several, one of their averages and one by kind of shift.

    Beside a board, a last column says where the runs of a row are from.
    """
    found = _plain_blocks(board)
    return [_with_origins(b, board.origins) if b.one_metric else b for b in found]


def _with_origins(block: Block, origins: Mapping[str, str]) -> Block:
    if not origins:
        return block
    rows = [[*row, origins.get(row[0], "")] for row in block.rows]
    return replace(block, header=[*block.header, FROM], rows=rows)


def _plain_blocks(board: Leaderboard) -> list[Block]:
    groups = dict(list(board.frame.groupby("dataset", sort=False)))
    found = []
    for name, frame in groups.items():
        found += _dataset_blocks(str(name), frame, board.higher)
    if len(groups) == 1:
        return found
    kinds = {board.shifts.get(str(name), "") for name in groups}
    return [*found, _summary(board), *([_by_shift(board)] if len(kinds) > 1 else [])]


def _header(column: tuple[str, str, str], columns: Sequence[tuple[str, str, str]]) -> str:
    tests, environment, metric = column
    if not environment:
        return metric
    others = [c for c in columns if c[1] == environment and c != column and c[0]]
    return f"{environment} (of {tests})" if others and tests != environment else environment


def _complete(average: pd.DataFrame) -> pd.Series:
    return average["n"] == average["planned"]


def _averages(frame: pd.DataFrame) -> pd.DataFrame:
    """The average of each row of a dataset, by label."""
    return frame[is_average(frame)].set_index("label")


def _dataset_blocks(dataset: str, frame: pd.DataFrame, higher: Mapping[str, bool]) -> list[Block]:
    """A table of the dataset's metric, and one of the predictor's own metrics if there are any."""
    averages = _averages(frame[frame["kind"] == METHOD])
    metric = str(averages["metric"].iloc[0])
    order: Any = {"ascending": not higher.get(metric, True), "key": lambda m: m.map(_rounded)}
    averages = averages.sort_values("mean", kind="stable", **order)
    apart = _averages(frame[frame["kind"] == TRANSDUCTIVE])
    grey = _averages(frame[~frame["kind"].isin((METHOD, TRANSDUCTIVE))])
    columns = list(frame[COLUMN].drop_duplicates().itertuples(index=False, name=None))
    kind = f"{metric}{' (%)' if is_proportion(metric) else ''}"
    title = f"{dataset}: {kind}" if metric else f"{dataset}: nothing recorded yet"
    found = [_block(title, [c for c in columns if c[1]], averages, grey, frame, higher)]
    if len(apart):
        apart = apart.sort_values("mean", kind="stable", **order)
        places = [c for c in columns if c[1]]
        found.append(_block(f"{title}, {APART}", places, apart, grey[:0], frame, higher))
    own = [c for c in columns if not c[1]]
    if own:
        recorded = grey[grey.index.isin(frame.loc[frame["environment"] == "", "label"])]
        title = f"{dataset}: of the predictor itself"
        further = _block(title, own, pd.concat([averages, apart]), recorded, frame, higher)
        found.append(replace(further, one_metric=False))
    return found


def _block(
    title: str,
    columns: Sequence[tuple[str, str, str]],
    averages: pd.DataFrame,
    grey: pd.DataFrame,
    frame: pd.DataFrame,
    higher: Mapping[str, bool],
) -> Block:
    """A block of some columns of a dataset's numbers, with the counts of trials.

    The rows are the complete ones of `averages` in its order, then its others, then those of `grey`.
    """
    complete = _complete(averages)
    labels = [str(x) for x in (*averages.index[complete], *averages.index[~complete])]
    cells = frame.set_index(["label", *COLUMN])
    by_place = cells.to_dict(orient="index")
    rows = []
    counts = pd.concat([averages, grey])
    for label in [*labels, *grey.index]:
        row = [str(label)]
        for column in columns:
            cell = by_place.get((label, *column), {"n": 0})
            row.append(number(cell["mean"], cell["stderr"], column[2]) if cell["n"] else "-")
        n, planned = counts.loc[label, ["n", "planned"]]
        rows.append([*row, f"{n}" if n == planned else f"{n}/{planned}"])
    ranked, best, near = int(complete.sum()), set(), set()
    for c, column in enumerate(columns):
        numbers = cells.reindex([(label, *column) for label in labels[:ranked]])
        found = _best(numbers["mean"].tolist(), c + 1, higher.get(column[2], True))
        near |= _near(numbers, found, c + 1)
        best |= found
    header = ["algorithm", *(_header(c, columns) for c in columns), "n"]
    return Block(title, header, rows, ranked, best, near, len(grey))


def _rounded(mean: float) -> float:
    """A mean in 12 digits, so that equal values are equal however they were added up."""
    return float(f"{mean:.12g}")


def _best(means: Sequence[float], column: int, higher: bool) -> set[tuple[int, int]]:
    """(row, column) of the best of at least two values."""
    rounded = [_rounded(m) for m in means]
    finite = [m for m in rounded if not math.isnan(m)]
    if len(rounded) < 2 or not finite:
        return set()
    value = max(finite) if higher else min(finite)
    return {(row, column) for row, mean in enumerate(rounded) if mean == value}


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
    """The labels over several datasets."""

    averages: dict[str, pd.DataFrame]
    labels: list[str]
    full: list[str]
    """The labels that are complete on every dataset, the best mean rank first."""
    rank: "pd.Series[float]"
    share: "pd.Series[float] | None"
    """The mean over the datasets that are measured in proportions, if there are any."""


def _overall(board: Leaderboard, datasets: Sequence[str]) -> _Overall:
    """Ranks are among the labels that are complete; equal values share their mean rank."""
    methods = board.frame[board.frame["kind"] == METHOD]
    groups = dict(list(methods.groupby("dataset", sort=False)))
    averages = {name: _averages(groups[name]) for name in datasets}
    labels = [str(label) for label in methods["label"].unique()]
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
        if is_proportion(metric):
            shares.append(means.where(_complete(average).reindex(labels, fill_value=False)))
    rank = pd.concat(ranks, axis=1).mean(axis=1)
    share = pd.concat(shares, axis=1).mean(axis=1, skipna=False) if shares else None
    full.sort(key=lambda label: rank[label])
    return _Overall(averages, labels, full, rank, share)


def _share(value: float) -> str:
    return "-" if math.isnan(value) else number(value, math.nan, "accuracy")


def _by_shift(board: Leaderboard) -> Block:
    """The mean average (where the metrics are proportions) and rank over each kind of shift."""
    kinds: dict[str, list[str]] = {}
    for dataset in board.frame["dataset"].unique():
        kinds.setdefault(board.shifts.get(dataset) or "not recorded", []).append(dataset)
    everywhere = _overall(board, list(board.frame["dataset"].unique()))
    order = [*everywhere.full, *(x for x in everywhere.labels if x not in everywhere.full)]
    header, columns, best = ["algorithm"], [order], set()
    for kind, datasets in kinds.items():
        found = _overall(board, datasets)
        if found.share is not None and all(_is_share(a) for a in found.averages.values()):
            header.append(f"{kind} (%)")
            columns.append([_share(found.share[label]) for label in order])
            values, up = found.share, True
        else:
            header.append(f"{kind} (rank)")
            ranked = found.rank.reindex(order)
            columns.append([f"{v:.2f}" if not math.isnan(v) else "-" for v in ranked])
            values, up = found.rank, False
        best |= _best([float(values[x]) for x in everywhere.full], len(header) - 1, up)
    rows = [list(row) for row in zip(*columns, strict=True)]
    title = "By kind of shift: means over its datasets"
    return Block(title, header, rows, len(everywhere.full), best)


def _is_share(average: pd.DataFrame) -> bool:
    return is_proportion(str(average["metric"].iloc[0]))


def _summary(board: Leaderboard) -> Block:
    """Every dataset's average, their mean where they are proportions, and the mean rank."""
    found = _overall(board, list(board.frame["dataset"].unique()))
    averages, labels, full = found.averages, found.labels, found.full
    rank, share = found.rank, found.share
    order = [*full, *(label for label in labels if label not in full)]
    rest = board.frame[board.frame["kind"] != METHOD]
    grey = [str(label) for label in rest["label"].unique()]
    beside = {name: _averages(rest[rest["dataset"] == name]) for name in averages}
    rows = []
    for label in [*order, *grey]:
        row = [str(label)]
        for a in (beside if label in grey else averages).values():
            there = label in a.index and a.loc[label, "n"]
            row.append(number(*a.loc[label, ["mean", "stderr", "metric"]]) if there else "-")
        if label in grey:
            row += ["-"] * (share is not None)
        elif share is not None:
            row.append(_share(share[label]))
        rows.append([*row, f"{rank[label]:.2f}" if label in full else "-"])
    header = ["algorithm", *averages, *(["average (%)"] if share is not None else []), "mean rank"]
    best = _best([rank[x] for x in full], len(header) - 1, False)
    if share is not None:
        best |= _best([share[x] for x in full], len(header) - 2, True)
    title = "All datasets: averages over test environments"
    return Block(title, header, rows, len(full), best, grey=len(grey))
