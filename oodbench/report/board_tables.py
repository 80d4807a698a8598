"""The tables of a board, and beside it of runs trained here; and what of them fits one screen."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from oodbench.errors import unknown
from oodbench.metrics import is_proportion
from oodbench.notes import Note
from oodbench.report.formats import OWN_ROWS, Block, Sheet
from oodbench.report.gaps import BASELINE, about, gaps_of, headline
from oodbench.report.leaderboard import scores
from oodbench.report.numbers import gain
from oodbench.report.prediction_metrics import with_prediction_metric
from oodbench.report.sheet import sheet_of
from oodbench.report.short import IN_PERCENT, short_sheet
from oodbench.report.statistics import BAND, block_table, paired_differences
from oodbench.report.statistics import ranks as ranks_of
from oodbench.results.frames import Frames, origins
from oodbench.selection import Judged, judged


def board_sheet(
    frames: Frames,
    rule: str | None = None,
    metric: str | None = None,
    also: Sequence[str] = (),
    short: bool = False,
) -> Sheet:
    """Return the leaderboard of `beside_board`'s frames, the gap closed, and the rows trained here.

    `short` returns what `short_sheet` keeps of them. Raises UserError as `leaderboard` does.
    """
    for name in dict.fromkeys([metric, *also]):
        frames = with_prediction_metric(frames, [rule], name)
    one = judged(frames, rule)
    tables = sheet_of(one, metric, also)
    if not short or frames.runs["dataset_label"].nunique() > 1:
        tables = with_gaps(tables, one, metric)
    if local := compare_own_rows(one):
        tables = replace(tables, blocks=[*tables.blocks, local])
    return short_sheet(tables) if short else tables


def with_gaps(tables: Sheet, one: Judged, metric: str | None = None) -> Sheet:
    """Add the table of the gap closed to a sheet, where the board has a clear head-room."""
    gaps = gaps_of(one, metric)
    if gaps is None:
        return tables
    note = Note(about(gaps), "The share of the gap: 0 is ERM, 1 the ceiling; 95 % intervals.")
    return replace(tables, blocks=[*tables.blocks, headline(gaps)], notes=(note, *tables.notes))


def compare_own_rows(one: Judged, baseline: str = BASELINE) -> Block | None:
    """Return a table of the rows trained here: rank, paired gains over a baseline and over the best frozen
    row.

    None if there is no such row. Raises UserError for a baseline that is no row of the table.
    """
    table = scores(one)
    labels = [str(label) for label in table["label"].unique()]
    if baseline not in labels:
        raise unknown("baseline", baseline, labels)
    places = origins(one.runs)
    local = [label for label, origin in places.items() if origin == "here"]
    frozen = [label for label, origin in places.items() if origin != "here"]
    groups = [(str(dataset), group) for dataset, group in table.groupby("dataset", sort=False)]
    shares = table[table["metric"].map(is_proportion).astype(bool)]
    if shares["dataset"].nunique() > 1:
        groups.append((IN_PERCENT, shares))
    rows = []
    for dataset, group in groups:
        best = _best(group, frozen)
        there = set(group["label"])
        rows += [_row(dataset, group, x, baseline, best) for x in local if x in there]
    header = ["dataset", "algorithm", "rank"]
    header += [f"gain over {baseline} [95 %]", "best of the board", "gain over it [95 %]"]
    return Block(OWN_ROWS, header, rows, len(rows), keys=2) if rows else None


def _ranked(group: pd.DataFrame) -> "pd.Series[float]":
    """Return the rank of each complete label on a dataset, or its mean rank over several; 1 is the best."""
    table = block_table(group)
    if group["dataset"].nunique() == 1:
        table = pd.DataFrame([table.mean()])
    return ranks_of(table).mean()


def _best(group: pd.DataFrame, labels: Sequence[str]) -> str | None:
    """Return the best of these labels; None if none is complete."""
    ranked = _ranked(group)
    there = ranked[ranked.index.isin(labels)].sort_values(kind="stable")
    return str(there.index[0]) if len(there) else None


def _row(
    dataset: str, group: pd.DataFrame, label: str, baseline: str, best: str | None
) -> list[str]:
    ranked = _ranked(group)
    several = group["dataset"].nunique() > 1
    if several and label not in ranked.index:  # its mean is over fewer datasets
        return [dataset, label, *["-"] * 4]
    rank = "-"
    if label in ranked.index:
        rank = f"{ranked[label]:{'.2f' if several else 'g'}} of {len(ranked)}"
    over_baseline, over_best = (_gain(group, label, other) for other in (baseline, best))
    return [dataset, label, rank, over_baseline, best or "-", over_best]


def _gain(group: pd.DataFrame, label: str, other: str | None) -> str:
    """Return the paired gain of a label over another, with its interval."""
    if other is None or other == label or other not in set(group["label"]):
        return "-"
    metric = str(group["metric"].iloc[0])
    both = group[group["label"].isin((label, other))]
    (difference,) = paired_differences(both, other, BAND if is_proportion(metric) else 0.0)
    if difference.equal or not difference.pairs:
        return "equal" if difference.equal else "-"
    interval = difference.gain
    mean, low, high = (gain(v, metric) for v in (interval.mean, interval.low, interval.high))
    return mean if math.isnan(interval.low) else f"{mean} [{low}, {high}]"
