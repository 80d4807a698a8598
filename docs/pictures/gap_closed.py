"""The README's picture: `python docs/pictures/gap_closed.py` writes gap_closed.svg beside it."""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from oodbench.report.gaps import BASELINE, HALVES, gaps_by_rule
from oodbench.report.sources import frames_of
from oodbench.selection import usual

BOARD = "small.v3"
LEAST = -0.5
COLOURS = {"natural": "#0b7285", "constructed": "#e67700"}


def draw(path: Path) -> None:
    """One row of dots a dataset, natural shifts above: 0 is ERM, 1 is the ceiling."""
    frames = frames_of([BOARD])
    gaps = gaps_by_rule(frames)[usual(frames)]
    halves = {d: half for half in HALVES for d in gaps.subsets.get(half, ())}
    order = sorted(halves, key=lambda dataset: halves[dataset] == "natural")
    plt.rcParams.update({"svg.hashsalt": BOARD, "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(figsize=(7.6, 0.9 + 0.36 * len(order)), layout="constrained")
    for y, dataset in enumerate(order):
        row = gaps.shares.loc[dataset].drop(BASELINE).dropna()
        colour = COLOURS[halves[dataset]]
        axes.plot(row.clip(lower=LEAST), [y] * len(row), "o", color=colour, alpha=0.35, mew=0, ms=5)
        place = (row.max(), y)
        axes.annotate(row.idxmax(), place, (4, 4), textcoords="offset points", fontsize=8)
    axes.set_yticks(range(len(order)), [f"{d} ({halves[d]})" for d in order])
    axes.set_ylim(-0.5, len(order) - 0.3)
    axes.axvline(0, color="#868e96", linewidth=1)
    axes.axvline(1, color="#868e96", linewidth=1, linestyle=":")
    axes.set_xlim(LEAST - 0.05, 1.3)
    axes.set_xticks([LEAST, 0, 0.5, 1], [f"{LEAST} or below", "ERM", "0.5", "ceiling"])
    axes.set_title(
        "Gap closed between ERM and the ceiling, by each tuned row", fontsize=10, loc="left"
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"))
