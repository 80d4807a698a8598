"""Rows trained here beside a board: rank, and paired gains over a baseline and over the best frozen row.

Imports no torch.
"""

import math

import pandas as pd

from oodbench.errors import unknown
from oodbench.metrics import is_proportion
from oodbench.report.leaderboard import scores
from oodbench.report.numbers import gain
from oodbench.report.ranking import block_table
from oodbench.report.ranking import ranks as ranks_of
from oodbench.report.sheet import Block
from oodbench.report.statistics import BAND, paired_differences
from oodbench.results.frames import Frames, origins


def compare_own_rows(frames: Frames, rule: str | None, baseline: str = "ERM") -> Block | None:
    """The table of the rows trained here; None if there is none. Raises UserError for another baseline than
    a row of the table.
    """
    table = scores(frames, rule)
    labels = [str(label) for label in table["label"].unique()]
    if baseline not in labels:
        raise unknown("baseline", baseline, labels)
    where = origins(frames.runs)
    mine = [label for label, origin in where.items() if origin == "here"]
    theirs = [label for label, origin in where.items() if origin != "here"]
    rows = []
    sets = [(str(d), own) for d, own in table.groupby("dataset", sort=False)]
    shares = table[table["metric"].map(is_proportion).astype(bool)]
    if shares["dataset"].nunique() > 1:
        sets.append(("datasets in %", shares))
    for dataset, own in sets:
        best = _best(own, theirs)
        for label in mine:
            if label in set(own["label"]):
                rows.append(_row(dataset, own, label, baseline, best))
    if not rows:
        return None
    header = ["dataset", "algorithm", "rank"]
    header += [f"gain over {baseline} [95 %]", "best of the board", "gain over it [95 %]"]
    return Block("Trained here, beside the board", header, rows, len(rows), keys=2)


def _ranked(own: pd.DataFrame) -> "pd.Series[float]":
    """The rank of each complete label on a dataset, or its mean rank over several; 1 is the best."""
    found = block_table(own)
    if own["dataset"].nunique() == 1:
        found = pd.DataFrame([found.mean()])
    return ranks_of(found).mean()


def _best(own: pd.DataFrame, labels: list[str]) -> str | None:
    """The best of these labels; None if none is complete."""
    ranked = _ranked(own)
    there = ranked[ranked.index.isin(labels)].sort_values(kind="stable")
    return str(there.index[0]) if len(there) else None


def _row(dataset: str, own: pd.DataFrame, label: str, baseline: str, best: str | None) -> list[str]:
    ranked = _ranked(own)
    several = own["dataset"].nunique() > 1
    if several and label not in ranked.index:  # a mean over some of them compares with no other
        return [dataset, label, *["-"] * 4]
    place = "-"
    if label in ranked.index:
        place = f"{ranked[label]:.2f}" if several else f"{ranked[label]:g} of {len(ranked)}"
    gains = [_gain(own, label, other) for other in (baseline, best)]
    return [dataset, label, place, gains[0], best or "-", gains[1]]


def _gain(own: pd.DataFrame, label: str, other: str | None) -> str:
    """The paired gain of a label over another, with its interval."""
    if other is None or other == label or other not in set(own["label"]):
        return "-"
    metric = str(own["metric"].iloc[0])
    both = own[own["label"].isin((label, other))]
    band = BAND if is_proportion(metric) else 0.0
    (found,) = paired_differences(both, other, band)
    if not found.pairs:
        return "-"
    mean, low, high = (gain(v, metric) for v in (found.gain.mean, found.gain.low, found.gain.high))
    return mean if math.isnan(found.gain.low) else f"{mean} [{low}, {high}]"
