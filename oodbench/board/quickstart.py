"""The first five minutes: a few methods trained again, among those that a board has."""

from pathlib import Path

from oodbench.report.leaderboard import AVERAGE, standings
from oodbench.report.numbers import number
from oodbench.report.references import METHOD
from oodbench.results.beside import beside_board
from oodbench.results.frames import Frames
from oodbench.results.run_spec import CONSTANT

BOARD, DATASET = "small.v1", "colored digits"
ROWS = ("ERM", "IRM", "VREx", "MMREx")
"""Rows that truly differ on DATASET by a rule that can tell."""


def next_lines(directory: Path, page: Path) -> list[str]:
    """What the table of runs here beside the board shows, where the page is, and what to type next."""
    frames = beside_board(BOARD, [directory])
    told = [f"What this shows: {_shown(frames)}", f"The page: open {page}"]
    own = "python -m oodbench.board run small.v1 --plugin my_method --algorithms MyMethod"
    told.append(
        "Next: write a method of your own, one class in one file (docs/guide/add_algorithm.md); "
        f"`{own} --trials 2 --draws 5 --out results/mine` puts it among these."
    )
    return told


def _shown(frames: Frames) -> str:
    """The best row beside ERM and the constant answer by each of two rules."""
    told = []
    for rule in ("train_val", "val_env"):
        found = standings(frames, rule).frame
        found = found[found["environment"] == AVERAGE].set_index("label")
        texts = {
            str(label): number(float(mean), float(error), str(metric))
            for label, mean, error, metric in found[["mean", "stderr", "metric"]].itertuples()
        }
        best = str(found.loc[found["kind"] == METHOD, "mean"].idxmax())
        told.append(f"by {rule} {best} has {texts[best]} and ERM {texts['ERM']}")
    return f"{'; '.join(told)}; the constant answer has {texts[CONSTANT]}."
