"""The first five minutes: a few methods trained again, among the best of a board. Imports no torch."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from oodbench.report.leaderboard import is_average, leaderboard, leaderboard_by_rule
from oodbench.report.numbers import number
from oodbench.report.references import METHOD
from oodbench.report.sheet import Sheet, sheet
from oodbench.results.frames import Frames, origins
from oodbench.results.join import of_runs
from oodbench.results.run_spec import CONSTANT

BOARD, DATASET = "small.v1", "colored digits"
ROWS = ("ERM", "IRM", "VREx", "MMREx")
"""Rows that truly differ on DATASET by a rule that can tell."""
BEST = 5
"""The number of the best rows that are shown beside what was trained here."""


def quick_sheet(frames: Frames, directory: Path) -> Sheet:
    """The table of the runs in a directory and of the best of the board's rows beside them."""
    methods = _averages(frames, "val_env").query("kind == @METHOD")
    best = methods.sort_values("mean", ascending=False).index[:BEST]
    here = {label for label, origin in origins(frames.runs).items() if "here" in origin}
    shown = frames.runs["ceiling"].eq(True) | frames.runs["label"].isin({*best, *here})
    others = len(methods) - len({*best, *here} & set(methods.index))
    found = sheet(leaderboard(of_runs(frames, frames.runs[shown]), "val_env"))
    more = (
        f"{others} more rows: python -m oodbench.board show {BOARD} {directory} "
        f"--dataset '{DATASET}'. All datasets: docs/boards/{BOARD}.md."
    )
    return replace(found, remarks=(*found.remarks, more))


def next_lines(frames: Frames, page: Path) -> list[str]:
    """What runs beside the board show, where the page is, and what to type next."""
    own = f"python -m oodbench.board run {BOARD} --plugin my_method --algorithms MyMethod"
    return [
        f"What this shows: {_shown(frames)}",
        f"The page: open {page}",
        "Next: write a method of your own, one class in one file (docs/guide/add_algorithm.md); "
        f"`{own} --trials 2 --draws 5 --out results/mine` puts it among these.",
    ]


def _averages(frames: Frames, rule: str) -> pd.DataFrame:
    """The averages over test environments by label."""
    found = leaderboard_by_rule(frames, rule).frame
    return found[is_average(found)].set_index("label")


def _shown(frames: Frames) -> str:
    """The best row beside ERM and the constant answer by each of two rules."""
    told = []
    for rule in ("train_val", "val_env"):
        found = _averages(frames, rule)
        texts = {
            str(label): number(float(mean), float(error), str(metric))
            for label, mean, error, metric in found[["mean", "stderr", "metric"]].itertuples()
        }
        best = str(found.loc[found["kind"] == METHOD, "mean"].idxmax())
        told.append(f"by {rule} {best} has {texts[best]} and ERM {texts['ERM']}")
    return f"{'; '.join(told)}; the constant answer has {texts[CONSTANT]}."
