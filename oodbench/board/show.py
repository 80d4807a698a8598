"""The tables of `board show`, `compare` and `quickstart`: a board, and beside it runs trained here."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from oodbench.board.asked import Asked
from oodbench.errors import UserError, unknown
from oodbench.metrics import is_proportion
from oodbench.notes import Note
from oodbench.report.comparison import comparison
from oodbench.report.formats import Block, Sheet
from oodbench.report.gap_tables import about, gaps_of, headline
from oodbench.report.leaderboard import (
    METHOD,
    is_mean,
    leaderboard,
    leaderboard_by_rule,
    scores,
)
from oodbench.report.numbers import gain, number
from oodbench.report.sheet import OVER_DATASETS, sheet
from oodbench.report.statistics import BAND, block_table, paired_differences
from oodbench.report.statistics import ranks as ranks_of
from oodbench.results.frames import Frames, origins
from oodbench.results.run_spec import CONSTANT
from oodbench.selection import usual

QUICK_BOARD, QUICK_DATASET = "small.v2", "desert rodents"
QUICK_ROWS = ("ERM", "BSoftmax", "GroupDRO", "VREx")
"""Rows that differ on QUICK_DATASET, and are trained many runs at once."""
BEST = 5
"""The most of the best rows, and of the rows trained here, that the last table of `board run` has."""
OWN = 12
"""The most comparisons with the board that `board run` prints at its end."""
IN_PERCENT = "datasets in %"
"""The name in tables of the mean over all datasets whose metric is a proportion."""
AMONG = "Ranks, places and the best row are those among the rows that are shown."
SUMMED_UP = ("mean", "mean (%)", "mean rank")
"""The columns of a leaderboard that a run prints at its end."""


def shown_sheet(asked: Asked) -> Sheet:
    """The leaderboard of a board with results directories beside it, and a comparison of their rows.

    Raises UserError as `Asked.frames` and `leaderboard` do.
    """
    if not asked.directories and asked.baseline != "ERM":
        raise UserError("--baseline compares rows trained here: name their results directories")
    frames = asked.frames()
    tables = sheet(leaderboard(frames, asked.rule, asked.metric))
    tables = with_gaps(tables, frames, asked.rule, asked.metric)
    local = compare_own_rows(frames, asked.rule, asked.baseline) if asked.directories else None
    if asked.rows:
        tables = replace(tables, notes=(*tables.notes, AMONG))
    return replace(tables, blocks=[*tables.blocks, local]) if local else tables


def with_gaps(tables: Sheet, frames: Frames, rule: str | None, metric: str | None = None) -> Sheet:
    """Add the table of the gap closed to a sheet, where the board has a clear head-room."""
    gaps = gaps_of(frames, rule or usual(frames), metric)
    if gaps is None:
        return tables
    note = Note(about(gaps), "The share of the gap: 0 is ERM, 1 the ceiling; 95 % intervals.")
    return replace(tables, blocks=[*tables.blocks, headline(gaps)], notes=(note, *tables.notes))


def compared_sheet(asked: Asked) -> Sheet:
    """All rows compared with a baseline; raises UserError as `Asked.frames` and `comparison` do."""
    return comparison(asked.frames(), asked.baseline, asked.rule, asked.metric)


def compare_own_rows(frames: Frames, rule: str | None, baseline: str = "ERM") -> Block | None:
    """A table of the rows trained here: rank, paired gains over a baseline and over the best frozen row.

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
        groups.append((IN_PERCENT, shares))
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
        rank = f"{ranked[label]:{'.2f' if several else 'g'}} of {len(ranked)}"
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


def ending_sheet(name: str, directory: Path, frames: Frames) -> Sheet:
    """The tables at the end of `board run`: the rows trained here and the best of the board, on one screen.

    `frames` are those of the board `name` and of the directory beside it.
    """
    board = leaderboard(frames)
    tables = sheet(board)
    overall = [block for block in tables.blocks if block.title == OVER_DATASETS]
    local = compare_own_rows(frames, None)
    blocks = [_summed_up(local)] if local else []
    blocks.append(_among_best((overall or tables.blocks)[0], _local(frames)))
    count = board.frame.loc[board.frame["kind"] == METHOD, "label"].nunique()
    more = (
        f"All {count} rows: `python -m oodbench.board show {name} {directory}`; --dataset, --algorithm "
        "and --notes choose what it prints."
    )
    return replace(tables, blocks=blocks, remarks=(*tables.remarks, more))


def _local(frames: Frames) -> list[str]:
    """The rows that were trained here."""
    return [label for label, origin in origins(frames.runs).items() if "here" in origin]


def _summed_up(local: Block) -> Block:
    """Cut the last column of the block of `compare_own_rows` and, if it is long, all rows but the means."""
    rows = list(range(len(local.rows)))
    if len(rows) > OWN:
        rows = ([r for r in rows if local.rows[r][0] == IN_PERCENT] or rows)[:OWN]
    labels = {row[1] for row in local.rows}
    if len(labels) > 1:
        return local.part(rows, range(len(local.header) - 1))
    columns = [0, *range(2, len(local.header) - 1)]
    return replace(local.part(rows, columns), title=f"{labels.pop()} beside the board", keys=1)


def _among_best(block: Block, labels: Sequence[str]) -> Block:
    """Cut a table to its best rows, the first of these labels, the baseline, grey rows and few columns."""
    wanted, first_grey = {"ERM", *labels[:BEST]}, len(block.rows) - block.grey
    overall = block.title == OVER_DATASETS  # in which grey rows have no number
    rows = [
        r
        for r, row in enumerate(block.rows)
        if r < min(BEST, block.ranked) or (r >= first_grey and not overall) or row[0] in wanted
    ]
    names = [name for name in block.header if name in SUMMED_UP] or block.header[1:2]
    names = [block.header[0], *names, *(n for n in ("n", "from") if n in block.header)]
    return block.part(rows, list(map(block.header.index, names)))


def quickstart_sheet(frames: Frames, directory: Path) -> Sheet:
    """The tables of the quickstart, with three notes alone where all runs equal the board's."""
    tables = ending_sheet(QUICK_BOARD, directory, frames)
    if any(origin == "here" for origin in origins(frames.runs).values()):
        return tables
    here = frames.runs["label"].isin(_local(frames)).sum()
    equal = f"All {here} runs here are equal to the board's, bit for bit."
    return replace(tables, notes=(*tables.notes[:2], equal), remarks=())


def next_lines(frames: Frames, page: Path) -> list[str]:
    """The quickstart's last lines: what its runs show, where the page is, what to type next."""
    return [
        f"What this shows: {_best_by_rules(frames)}",
        f"The page: open {page}",
        "Next: a method of your own, one class in one file: docs/tutorials/your_method.md",
    ]


def _best_by_rules(frames: Frames) -> str:
    """The best row by each of two rules, beside ERM and the constant answer."""
    clauses = []
    for rule in ("train_val", "val_env"):
        board = leaderboard_by_rule(frames, rule)
        averages = board.frame[is_mean(board.frame)].set_index("label")
        texts = {
            str(label): number(float(mean), float(error), str(metric))
            for label, mean, error, metric in averages[["mean", "stderr", "metric"]].itertuples()
        }
        means = averages.loc[averages["kind"] == METHOD, "mean"]
        is_higher = board.higher[str(averages["metric"].iloc[0])]
        best = str(means.idxmax() if is_higher else means.idxmin())
        clauses.append(f"by {rule} {best} has {texts[best]}, ERM {texts['ERM']}")
    return f"{'; '.join(clauses)}; the constant answer {texts[CONSTANT]}."
