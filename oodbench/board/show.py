"""The tables of `board show`, `compare` and `quickstart`: a board, and beside it runs trained here."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from oodbench.board.beside import beside_board
from oodbench.board.gap_tables import about, gaps_of, headline
from oodbench.errors import UserError, unknown
from oodbench.metrics import is_proportion
from oodbench.report.comparison import comparison
from oodbench.report.formats import Block, Sheet
from oodbench.report.leaderboard import (
    METHOD,
    is_mean,
    leaderboard,
    leaderboard_by_rule,
    scores,
)
from oodbench.report.numbers import gain, number
from oodbench.report.sheet import sheet
from oodbench.report.statistics import BAND, block_table, paired_differences
from oodbench.report.statistics import ranks as ranks_of
from oodbench.results.frames import Frames, only_dataset, origins, subset
from oodbench.results.run_spec import CONSTANT
from oodbench.selection import usual

QUICK_BOARD, QUICK_DATASET = "small.v1", "colored digits"
QUICK_ROWS = ("ERM", "IRM", "VREx", "MMREx")
"""Rows that truly differ on QUICK_DATASET by a rule that can tell."""
BEST = 5
"""The number of the best rows that the quickstart shows beside what was trained here."""


def shown_sheet(
    name: str,
    directories: Sequence[Path],
    selection: str | None = None,
    dataset: str | None = None,
    baseline: str = "ERM",
    metric: str | None = None,
) -> Sheet:
    """The leaderboard of a board with results directories beside it, and a comparison of their rows.

    Raises UserError as `beside_board` and `leaderboard` do.
    """
    if not directories and baseline != "ERM":
        raise UserError("--baseline compares rows trained here: name their results directories")
    frames = _frames(name, directories, dataset)
    tables = with_gaps(sheet(leaderboard(frames, selection, metric)), frames, selection, metric)
    local = compare_own_rows(frames, selection, baseline) if directories else None
    return replace(tables, blocks=[*tables.blocks, local]) if local else tables


def with_gaps(tables: Sheet, frames: Frames, rule: str | None, metric: str | None = None) -> Sheet:
    """The sheet with the share of the gap that rows close, where the board has a clear head-room."""
    gaps = gaps_of(frames, rule or usual(frames), metric)
    if gaps is None:
        return tables
    return replace(
        tables, blocks=[*tables.blocks, headline(gaps)], notes=(about(gaps), *tables.notes)
    )


def compared_sheet(
    name: str,
    directories: Sequence[Path],
    selection: str | None,
    dataset: str | None,
    baseline: str,
    metric: str | None,
) -> Sheet:
    """All rows compared with a baseline; raises UserError as `beside_board` and `comparison` do."""
    return comparison(_frames(name, directories, dataset), baseline, selection, metric)


def _frames(name: str, directories: Sequence[Path], dataset: str | None) -> Frames:
    frames = beside_board(name, directories)
    return frames if dataset is None else only_dataset(frames, dataset)


def compare_own_rows(frames: Frames, rule: str | None, baseline: str = "ERM") -> Block | None:
    """Rank of the rows trained here, and paired gains over a baseline and over the best frozen row.

    None if there is no such row. Raises UserError for a baseline that is no row of the table.
    """
    table = scores(frames, rule)
    labels = [str(label) for label in table["label"].unique()]
    if baseline not in labels:
        raise unknown("baseline", baseline, labels)
    places = origins(frames.runs)
    local = [label for label, origin in places.items() if origin == "here"]
    frozen = [label for label, origin in places.items() if origin != "here"]
    groups = [(str(dataset), group) for dataset, group in table.groupby("dataset", sort=False)]
    shares = table[table["metric"].map(is_proportion).astype(bool)]
    if shares["dataset"].nunique() > 1:
        groups.append(("datasets in %", shares))
    rows = []
    for dataset, group in groups:
        best = _best(group, frozen)
        there = set(group["label"])
        rows += [_row(dataset, group, x, baseline, best) for x in local if x in there]
    header = ["dataset", "algorithm", "rank"]
    header += [f"gain over {baseline} [95 %]", "best of the board", "gain over it [95 %]"]
    title = "Trained here, beside the board"
    return Block(title, header, rows, len(rows), keys=2) if rows else None


def _ranked(group: pd.DataFrame) -> "pd.Series[float]":
    """The rank of each complete label on a dataset, or its mean rank over several; 1 is the best."""
    table = block_table(group)
    if group["dataset"].nunique() == 1:
        table = pd.DataFrame([table.mean()])
    return ranks_of(table).mean()


def _best(group: pd.DataFrame, labels: Sequence[str]) -> str | None:
    """The best of these labels; None if none is complete."""
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
        rank = f"{ranked[label]:.2f}" if several else f"{ranked[label]:g} of {len(ranked)}"
    over_baseline, over_best = (_gain(group, label, other) for other in (baseline, best))
    return [dataset, label, rank, over_baseline, best or "-", over_best]


def _gain(group: pd.DataFrame, label: str, other: str | None) -> str:
    """The paired gain of a label over another, with its interval."""
    if other is None or other == label or other not in set(group["label"]):
        return "-"
    metric = str(group["metric"].iloc[0])
    both = group[group["label"].isin((label, other))]
    (difference,) = paired_differences(both, other, BAND if is_proportion(metric) else 0.0)
    if not difference.pairs:
        return "-"
    interval = difference.gain
    mean, low, high = (gain(v, metric) for v in (interval.mean, interval.low, interval.high))
    return mean if math.isnan(interval.low) else f"{mean} [{low}, {high}]"


def quick_sheet(frames: Frames, directory: Path) -> Sheet:
    """The table of the runs in a directory and of the board's best rows beside them."""
    methods = _averages(frames, "val_env").query("kind == @METHOD")
    best = methods.sort_values("mean", ascending=False).index[:BEST]
    here = {label for label, origin in origins(frames.runs).items() if "here" in origin}
    shown = frames.runs["ceiling"].eq(True) | frames.runs["label"].isin({*best, *here})
    others = len(methods) - len({*best, *here} & set(methods.index))
    tables = sheet(leaderboard(subset(frames, frames.runs[shown]), "val_env"))
    more = (
        f"{others} more rows: python -m oodbench.board show {QUICK_BOARD} {directory} "
        f"--dataset '{QUICK_DATASET}'. All datasets: docs/boards/{QUICK_BOARD}.md."
    )
    return replace(tables, remarks=(*tables.remarks, more))


def next_lines(frames: Frames, page: Path) -> list[str]:
    """The quickstart's last lines: what its runs show, where the page is, what to type next."""
    mine = f"python -m oodbench.board run {QUICK_BOARD} --plugin my_method --algorithm MyMethod"
    return [
        f"What this shows: {_best_by_rules(frames)}",
        f"The page: open {page}",
        "Next: write a method of your own, one class in one file (docs/guide/add_algorithm.md); "
        f"`{mine} --trials 2 --draws 5 --out results/mine` puts it among these.",
    ]


def _averages(frames: Frames, rule: str) -> pd.DataFrame:
    """The averages over test environments by label."""
    frame = leaderboard_by_rule(frames, rule).frame
    return frame[is_mean(frame)].set_index("label")


def _best_by_rules(frames: Frames) -> str:
    """The best row beside ERM and the constant answer by each of two rules."""
    clauses = []
    for rule in ("train_val", "val_env"):
        averages = _averages(frames, rule)
        texts = {
            str(label): number(float(mean), float(error), str(metric))
            for label, mean, error, metric in averages[["mean", "stderr", "metric"]].itertuples()
        }
        best = str(averages.loc[averages["kind"] == METHOD, "mean"].idxmax())
        clauses.append(f"by {rule} {best} has {texts[best]} and ERM {texts['ERM']}")
    return f"{'; '.join(clauses)}; the constant answer has {texts[CONSTANT]}."
