"""The picture of the board small.v1: `python docs/pictures/small_v1.py` writes small_v1.svg beside it."""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from oodbench.board.files import find_board
from oodbench.board.summary import whole_board

GREY = ("ceiling", "constant")


def gaps() -> dict[str, dict[str, float]]:
    """By dataset, the share of the way from ERM to the ceiling that each row's mean goes."""
    blocks = whole_board(find_board("small.v1")).blocks
    (block,) = (b for b in blocks if b.title.startswith("All datasets"))
    found: dict[str, dict[str, float]] = {}
    for column, dataset in enumerate(block.header):
        cells = {row[0]: row[column].partition(" ±")[0] for row in block.rows if "±" in row[column]}
        values = {label: float(cell) for label, cell in cells.items()}
        if {"ERM", "ceiling"} <= values.keys():
            span = values["ceiling"] - values["ERM"]
            found[dataset] = {k: (v - values["ERM"]) / span for k, v in values.items()}
    return found


def best_row(dataset: str) -> str:
    """The first row of a dataset's own table."""
    blocks = whole_board(find_board("small.v1")).blocks
    return next(b.rows[0][0] for b in blocks if b.title.startswith(f"{dataset}: "))


def draw(path: Path) -> None:
    """One row of dots a dataset: 0 is ERM, 1 is the ceiling."""
    plt.rcParams.update({"svg.hashsalt": "small.v1", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(figsize=(7.6, 3.6), layout="constrained")
    for y, (dataset, row) in enumerate(reversed(gaps().items())):
        methods = {k: v for k, v in row.items() if k not in (*GREY, "ERM")}
        xs = [max(v, -0.5) for v in methods.values()]
        axes.plot(xs, [y] * len(xs), "o", color="#0b7285", alpha=0.35, markersize=5, mew=0)
        best = best_row(dataset)
        axes.annotate(best, (methods[best], y), (4, 4), textcoords="offset points", fontsize=8)
    axes.set_yticks(range(len(gaps())), [*reversed(gaps())])
    axes.axvline(0, color="#868e96", linewidth=1)
    axes.axvline(1, color="#868e96", linewidth=1, linestyle=":")
    axes.set_xlim(-0.55, 1.25)
    axes.set_xticks([-0.5, 0, 0.5, 1], ["-0.5 or below", "ERM", "0.5", "ceiling"])
    axes.set_title(
        "Gap closed between ERM and the ceiling, by each tuned row", fontsize=10, loc="left"
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".svg"))
