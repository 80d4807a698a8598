"""A leaderboard as printed tables: those of each dataset, then one over all datasets."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from oodbench.metrics import is_proportion
from oodbench.report.cells import MEAN, METHOD, TRANSDUCTIVE
from oodbench.report.numbers import UNDEFINED, Cell, count, with_error, with_unit
from oodbench.report.statistics import rounded
from oodbench.report.tables import Block, Sheet
from oodbench.report.tables.leaderboard import (
    COLUMN,
    FROM,
    PRETRAINING,
    UNADAPTED,
    Leaderboard,
    is_mean,
)
from oodbench.report.tables.remarks import findings_of

SHARES, RANK = "mean (%)", "mean rank"
"""The last columns of the table over all datasets."""
Column = tuple[str, str, str]
"""The test environments, environment and metric of a column."""


def sheet(board: Leaderboard) -> Sheet:
    """The tables of a leaderboard."""
    shown, frame = blocks(board), board.frame
    marks = ["Bold: the best value."] * any(block.best for block in shown)
    marks += ["Underlined: no further from it than its standard error."] * any(
        block.near for block in shown
    )
    apart = "Predictions of transductive methods depend on the other test inputs, too."
    notes = (*board.notes, *[apart] * (TRANSDUCTIVE in set(frame["kind"])), *board.findings)
    paper = shown[-1 if frame["dataset"].nunique() > 1 else 0]
    marked = (" ".join(marks),) * bool(marks)
    found = findings_of(board.chosen.runs)
    return Sheet(shown, notes, board.remarks, frame, marked, paper, found)


def blocks(board: Leaderboard) -> list[Block]:
    """The tables of each dataset, and as the last one that over all, if there are several."""
    frames = {str(d): frame for d, frame in board.frame.groupby("dataset", sort=False)}
    shown = [block for name, frame in frames.items() for block in _of_dataset(board, name, frame)]
    return shown if len(frames) == 1 else [*shown, _over_datasets(board)]


def _of_dataset(board: Leaderboard, name: str, frame: pd.DataFrame) -> list[Block]:
    means = frame[is_mean(frame)].set_index("label", drop=False)
    metric = str(means.loc[means["kind"] == METHOD, "metric"].iloc[0])
    cost = means["mean"].map(rounded) * (-1 if board.higher.get(metric, True) else 1)
    ordered = means.iloc[np.argsort(cost.to_numpy(), kind="stable")]
    methods, apart = (ordered[ordered["kind"] == kind] for kind in (METHOD, TRANSDUCTIVE))
    grey = means[~means["kind"].isin((METHOD, TRANSDUCTIVE))]
    columns = list(frame[COLUMN].drop_duplicates().itertuples(index=False, name=None))
    tested = [column for column in columns if column[1]]
    if len(tested) == 2:  # the mean over a single environment would repeat its column
        tested = tested[:1]
    title = f"{name}: {with_unit(metric) or 'nothing recorded yet'}"
    tables = [_block(board, title, frame, tested, methods, grey)]
    if len(apart):
        title = f"{title}, of transductive methods"
        tables.append(_block(board, title, frame, tested, apart, grey[:0]))
    if of_predictor := [column for column in columns if not column[1]]:
        own = frame.loc[frame["environment"].eq("") & frame["mean"].notna(), "label"]
        rows, grey = pd.concat([methods, apart]), grey[grey.index.isin(own)]  # not a forest
        title = f"{name}: of the predictor itself"
        tables.append(_block(board, title, frame, of_predictor, rows, grey))
    return tables


def _block(
    board: Leaderboard,
    title: str,
    frame: pd.DataFrame,
    columns: Sequence[Column],
    means: pd.DataFrame,
    grey: pd.DataFrame,
) -> Block:
    complete = is_complete(means)
    rows = pd.concat([means[complete], means[~complete], grey])
    ranked, labels = int(complete.sum()), list(rows.index)
    lasts = [last_cells(board, row) for row in rows.to_dict("records")]
    records = frame.assign(beats=_beats_constant(frame)).to_dict("records")
    entries = {tuple(e[name] for name in ("label", *COLUMN)): e for e in records}
    header, cells, fits = ["algorithm"], [labels], [0]
    for column in columns:
        of_column = [entries.get((label, *column), {}) for label in labels]
        fits += [len(header)] * (column[1] == MEAN or len(columns) == 1)
        header.append(_title(column, columns))
        cells.append(list(map(value_cell, of_column)))
    for name in lasts[0]:
        if any(of_row[name] for of_row in lasts):
            fits += [len(header)] * (name in ("n", FROM))
            header.append(name)
            cells.append([of_row[name] for of_row in lasts])
    texts = list(map(list, zip(*cells, strict=True)))
    block = Block(title, header, texts, ranked, grey=len(grey), fits=fits)
    for c, column in enumerate(columns, 1):
        of_ranked = [entries.get((label, *column), {}) for label in labels[:ranked]]
        _mark(block, c, of_ranked, board.higher.get(column[2], True))
    return block


def _mark(block: Block, c: int, rows: Sequence[Any], higher: bool) -> None:
    """Mark a column's best values, if they beat the constant answer, those near them, and the runner-up.

    There is a runner-up if a single best value, among at least three, is marked.
    """
    means, errors = (
        np.array([row.get(name, math.nan) for row in rows], float) for name in ("mean", "stderr")
    )
    values = [rounded(mean) for mean in means]
    best = _best(values, higher)
    shown = {row for row in best if rows[row].get("beats", True)}
    near = {int(r) for b in shown for r in np.flatnonzero(np.abs(means - means[b]) <= errors[b])}
    block.best.update((row, c) for row in shown)
    block.near.update((row, c) for row in near - shown)
    if len(best) == 1 and len(rows) > 2 and shown:
        others = [math.nan if row in best else value for row, value in enumerate(values)]
        block.second.update((row, c) for row in _best(others, higher))


def _best(values: Sequence[float], higher: bool) -> set[int]:
    finite = [value for value in values if not math.isnan(value)]
    if len(values) < 2 or not finite:
        return set()
    best = max(finite) if higher else min(finite)
    return {row for row, value in enumerate(values) if value == best}


def _title(column: Column, columns: Sequence[Column]) -> str:
    tests, environment, metric = column
    if not environment:
        return metric
    others = [c for c in columns if c[1] == environment and c != column and c[0]]
    return f"{environment} (of {tests})" if others and tests != environment else environment


def value_cell(row: Any) -> Cell:
    """The mean in a row of `Leaderboard.frame`; `-` if no trial is complete."""
    if not row or not row["n"]:
        return "-"
    if row.get("defined") == 0:
        return UNDEFINED
    return with_error(row["mean"], row["stderr"], row["metric"])


def last_cells(board: Leaderboard, row: Mapping[Any, Any]) -> dict[str, Cell]:
    """The last cells of a row by column title; `row` is the row's mean in `Leaderboard.frame`."""
    found: dict[str, Cell] = {with_unit(m): _further_cell(row, m, m) for m in board.also}
    if UNADAPTED in row:
        found[UNADAPTED] = _further_cell(row, UNADAPTED, row["metric"])
    found["n"] = count(row["n"], row["planned"])
    if PRETRAINING in row:
        found[PRETRAINING] = row[PRETRAINING] or "none"
    return found | ({FROM: row[FROM]} if FROM in row else {})


def _further_cell(row: Mapping[Any, Any], name: str, metric: str) -> Cell:
    if not math.isnan(row[name]):
        return with_error(row[name], row[f"{name}_stderr"], metric)
    return UNDEFINED if row.get(f"{name}_undefined") else ""


def _beats_constant(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Mask of the numbers that beat the constant answer; all of them if there is none."""
    if "constant" not in frame:
        return pd.Series(True, frame.index)
    return ~frame["constant"].isin(("equal", "worse"))


def is_complete(means: pd.DataFrame) -> "pd.Series[bool]":
    """Mask of rows with all planned trials, and as many defined values as any row of the dataset."""
    ended = means["n"] == means["planned"]
    if "defined" not in means:
        return ended
    return ended & (means["defined"] == means.groupby("dataset")["defined"].transform("max"))


def _over_datasets(board: Leaderboard) -> Block:
    """The table of `_ranking`; complete methods come first."""
    frame = board.frame
    means = frame[is_mean(frame)].assign(beats=_beats_constant(frame))
    columns = _ranking(board, means)
    datasets = list(frame["dataset"].unique())
    ranks, full = columns[RANK][0], list(columns[RANK][0].index)
    is_method = frame["kind"] == METHOD
    labels, grey = (list(frame.loc[rows, "label"].unique()) for rows in (is_method, ~is_method))
    entries = {(e["dataset"], e["label"]): e for e in means.to_dict("records")}
    froms = frame.drop_duplicates("label").set_index("label")[[FROM] if FROM in frame else []]
    rows: list[list[Cell]] = []
    for label in [*full, *(x for x in labels if x not in full), *grey]:
        row = [label]
        for dataset in datasets:
            entry = entries.get((dataset, label), {})
            is_shown = (entry.get("kind") == METHOD) != (label in grey)
            row.append(value_cell(entry) if is_shown else "-")
        if SHARES in columns:
            mean = columns[SHARES][0].get(label, math.nan)
            row.append("-" if math.isnan(mean) else with_error(mean, math.nan, "accuracy"))
        rank = f"{ranks[label]:.2f}" if label in ranks else "-"
        rows.append([*row, rank, *froms.loc[label]])
    header = ["algorithm", *columns, *froms]
    title = "All datasets: means over test environments"
    fits = (0, *range(1 + len(datasets), len(header)))
    block = Block(title, header, rows, len(full), grey=len(grey), fits=fits)
    for c, (values, beats, up) in enumerate(columns.values(), 1):
        _mark(block, c, [{"mean": values[x], "beats": beats[x]} for x in full], up)
    return block


Ranked = tuple["pd.Series[float]", "pd.Series[bool]", bool]
"""Values by method, NaN if it has none; whether they beat the constant answer, for methods that are
complete on all datasets; whether higher is better."""


def _ranking(board: Leaderboard, means: pd.DataFrame) -> dict[str, Ranked]:
    """The columns over all datasets: each dataset's mean, the mean of proportions (if any), and the mean
    rank of methods that are complete on all datasets, the best first; ties share a rank.
    """
    methods = means[means["kind"] == METHOD]
    methods = methods.assign(mean=methods["mean"].map(rounded), whole=is_complete(methods))
    labels, datasets = methods["label"].unique(), list(means["dataset"].unique())
    values, whole, beats = (
        methods.pivot(index="label", columns="dataset", values=name).reindex(labels)[datasets]
        for name in ("mean", "whole", "beats")
    )
    whole = whole.eq(True)
    full = whole.index[whole.all(axis=1)]
    beats = beats.loc[full].eq(True)
    metrics = dict(zip(methods["dataset"], methods["metric"], strict=True))
    higher = {d: board.higher.get(metrics[d], True) for d in datasets}
    defined = methods[methods["defined"] > 0] if "defined" in methods else methods
    signs = {d: -1 if higher[d] else 1 for d in datasets if d in set(defined["dataset"])}
    costs = values.loc[full, [*signs]] * [*signs.values()]
    rank = costs.rank(na_option="bottom").mean(axis=1).sort_values(kind="stable")
    columns: dict[str, Ranked] = {d: (values[d], beats[d], up) for d, up in higher.items()}
    if in_percent := [d for d in signs if is_proportion(metrics[d])]:
        share = values.where(whole)[in_percent].mean(axis=1, skipna=False)
        columns[SHARES] = share, beats.any(axis=1), True
    return columns | {RANK: (rank, beats.any(axis=1), False)}
