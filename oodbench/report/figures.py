"""What a diagnostic finds: a table to print and a picture to save."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

from oodbench.terminal import printable, terminal

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours of the lines of a picture, which the colour-blind tell apart too (Okabe and Ito, 2008)."""
STYLE: Any = {
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.size": 10,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "oodbench",
}


@dataclass(frozen=True)
class Finding:
    """A table of texts, remarks below it, and what draws it into a figure."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (8.0, 3.6)
    """Width and height of the picture in inches."""
    keys: int = 1
    """Number of first columns that name a row."""
    prose: tuple[int, ...] = ()
    """Columns of text, which are wrapped at words."""


def plain(name: str) -> str:
    """A name as a text of a picture: its dollars are no mathematics, its controls are escapes."""
    return printable(name).replace("$", r"\$")


def show(finding: Finding, name: str, directory: Path) -> None:
    """Print the table, and write NAME.png and NAME.svg, the same bytes for the same finding."""
    console = terminal()
    console.say(finding.title)
    tables = console.tables(finding.header, finding.rows, keys=finding.keys, prose=finding.prose)
    console.print(tables, soft_wrap=True)
    for note in finding.notes:
        console.say(note)
    for path in save(finding, name, directory):
        console.say(str(path))


def save(finding: Finding, name: str, directory: Path) -> tuple[Path, Path]:
    """Write the picture as PNG and SVG; returns the two paths."""
    directory.mkdir(parents=True, exist_ok=True)
    png, svg = directory / f"{name}.png", directory / f"{name}.svg"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=finding.size, layout="constrained")
        finding.draw(figure)
        figure.savefig(png, dpi=150)
        figure.savefig(svg, metadata={"Date": None})
    return png, svg
