"""The page of a board as one HTML file that needs no other, and no network.

Its scripts draw what they compute from the numbers of `embedded`, for the datasets, rows and the rule that
a reader chooses; the other sections are those of the Markdown.
"""

import itertools
import re
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from oodbench.board.page.contents import Contents
from oodbench.board.page.embedded import embedded
from oodbench.board.page.markdown import about, sections
from oodbench.report.html import ASSETS as SHARED
from oodbench.report.html import assembled
from oodbench.report.html import embedded as as_json
from oodbench.terminal import printable
from oodbench.version import __version__

ASSETS = Path(__file__).resolve().parent / "assets"
SCRIPTS = (
    *(SHARED / f"{name}.js" for name in ("dom", "charts")),
    *(
        ASSETS / f"{name}.js"
        for name in ("statistics", "view", "runs", "heatmap", "intervals", "scatter", "app")
    ),
)
"""The scripts, in the order in which they are joined."""
LONG = 16
"""The number of rows beyond which a table is folded until a reader opens it."""
WORDY = 40
"""The number of characters of a cell beyond which a table counts as one of texts."""


def html_page(board: Contents) -> str:
    """The page of a board."""
    numbers = embedded(board)
    written = [section for section in sections(board) if not section.drawn]
    parts = {
        "version": escape(__version__),
        "title": escape(printable(f"The board {board.name}")),
        "about": _html(about(board)),
        "rule": escape(board.rule),
        "links": "".join(f'<a href="#w{i}">{one.title}</a>' for i, one in enumerate(written)),
        "sections": "\n".join(
            f'<section id="w{i}"><h2 tabindex="-1">{one.title}</h2>{_html(one.write())}</section>'
            for i, one in enumerate(written)
        ),
        "data": as_json(numbers.numbers),
        "runs": numbers.runs_behind,
    }
    styles = [SHARED / "page.css", ASSETS / "board.css"]
    return assembled(ASSETS / "page.html", styles, SCRIPTS, parts)


def _html(text: str) -> str:
    """Turn Markdown into HTML, in which a wide table scrolls by itself and a long one is folded."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(
        r' style="text-align:(\w+)"', r' class="\1"', body
    )  # the policy allows no style here
    return re.sub("<table>.*?</table>", _framed, body, flags=re.DOTALL)


def _framed(table: re.Match[str]) -> str:
    rows = table[0].count("<tr>") - 1
    if any(len(cell) > WORDY for cell in re.findall("<td[^>]*>(.*?)</td>", table[0])):
        return _stacked(table[0])
    framed = f'<div class="scroll" tabindex="0">{table[0]}</div>'
    if rows <= LONG:
        return framed
    return f"<details><summary>The table, of {rows} rows</summary>{framed}</details>"


def _stacked(table: str) -> str:
    """A table of texts: on a narrow screen its cells stand below each other, after their columns' names."""
    names = re.findall("<th[^>]*>(.*?)</th>", table)
    heads = itertools.cycle(names)
    named = re.sub("<td", lambda _: f'<td data-head="{next(heads)}"', table)
    return named.replace("<table>", '<table class="texts">')
