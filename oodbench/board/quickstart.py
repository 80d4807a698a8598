"""The quickstart: four methods, trained again, among the rows of a board."""

from dataclasses import replace
from pathlib import Path

from oodbench.report.cells import METHOD
from oodbench.report.comparison import board_sheet
from oodbench.report.numbers import number
from oodbench.report.tables import Sheet
from oodbench.report.tables.leaderboard import is_mean, leaderboard
from oodbench.results.run_spec import CONSTANT
from oodbench.results.tables import Tables, origins

BOARD, DATASET, TRIALS = "small.v3", "SEM, FOU", 8
ROWS = ("ERM", "VREx", "GroupDRO", "CVaR")
"""Rows that differ on DATASET, and are trained many runs at once."""


def quickstart_sheet(frames: Tables) -> Sheet:
    """The tables of the quickstart, with three notes alone where all runs equal the board's."""
    tables = board_sheet(frames, short=True)
    places = origins(frames.runs)
    if "here" in places.values():
        return tables
    again = [label for label, place in places.items() if "here" in place]
    count = frames.runs["label"].isin(again).sum()
    equal = f"All {count} runs here are equal to the board's, bit for bit."
    return replace(tables, notes=(*tables.notes[:2], equal))


def next_lines(frames: Tables, page: Path) -> list[str]:
    """The quickstart's last lines: what its runs show, where the page is, what to type next."""
    return [
        f"What this shows: {_best_by_rules(frames)}",
        f"The page: open {page}",
        "Next: a method of your own, one class in one file: docs/tutorials/your_method.md",
    ]


def _best_by_rules(frames: Tables) -> str:
    clauses = []
    for rule in ("train_val", "val_env"):
        board = leaderboard(frames, rule)
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
