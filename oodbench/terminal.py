"""How text reaches the terminal.

All output of a command goes through `terminal` or through `print` of a text of `printable`.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from oodbench.printable import printable, wrapped

ASCII = str.maketrans({"±": "+-", "≥": ">=", "≤": "<=", "…": "...", "→": "->"})
"""What stands for our own signs where the terminal's encoding lacks them."""


class Terminal(Console):
    """A console that takes every string for text: no markup, no emoji, no highlighting.

    Control characters are shown as escapes. A `Text` or a style is the one way to style something.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as a `Text`: what `print` and tables do with strings."""
        if self.encoding.startswith("utf"):
            return super().render_str(printable(text, "\n"), **options)
        return super().render_str(printable(text, "\n").translate(ASCII), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of a renderable; a `Text` made elsewhere has its controls escaped here."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, "\n"), style, control)

    def say(self, text: str) -> None:
        """Print prose, `wrapped`."""
        self.print(self.wrapped(text), soft_wrap=True)

    def wrapped(self, text: str) -> str:
        """The text with its lines wrapped at words, as `printable.wrapped` does it.

        Lines that a program reads, in a file or a pipe, stay as they are unless COLUMNS is set.
        """
        if not (self.is_terminal or "COLUMNS" in os.environ):
            return text
        return wrapped(text, self.width)

    def tables(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        keys: int = 1,
        prose: Collection[int] = (),
        line_after: int = 0,
        styles: Mapping[tuple[int, int], str] = MappingProxyType({}),
    ) -> Group:
        """A table of texts as wide as the terminal, of which no number is cut: a wide one as several.

        Each of these repeats the first `keys` columns. The columns `prose` are wrapped at words, all
        others but the keys are justified to the right. Where all columns are wider than the terminal,
        long titles are wrapped, too. A line follows the first `line_after` rows; `styles` are those of
        cells by (row, column).
        """
        titles = [self.render_str(title).plain for title in header]
        columns = [[self.cells_of(row[c]) for row in rows] for c in range(len(header))]
        widths = [max(cell_len(t), *own, 0) for t, own in zip(titles, columns, strict=True)]
        if sum(widths) + GAP * (len(widths) - 1) > self.width:
            rooms = [max(TITLE, *own) for own in columns]
            titles = [wrapped(t, room) for t, room in zip(titles, rooms, strict=True)]
            lengths = [max(map(cell_len, t.split("\n"))) for t in titles]
            widths = [max(n, *own, 0) for n, own in zip(lengths, columns, strict=True)]
        parts: list[RenderableType] = []
        for block in _blocks(widths, keys, self.width):
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
            room = self.width - sum(widths[c] + GAP for c in block[:-1])
            for c in block:
                if c in prose and widths[c] > room:
                    table.add_column(self.render_str(titles[c]), max_width=max(room, 20))
                else:
                    justify: JustifyMethod = "left" if c < keys or c in prose else "right"
                    table.add_column(self.render_str(titles[c]), justify=justify, no_wrap=True)
            for r, row in enumerate(rows):
                cells = [self.render_str(row[c], style=styles.get((r, c), "")) for c in block]
                table.add_row(*cells, end_section=r + 1 == line_after)
            natural = sum(min(widths[c], room) if c in prose else widths[c] for c in block)
            table.width = natural + GAP * (len(block) - 1)
            parts += [table, Text()]
        return Group(*parts)

    def cells_of(self, text: str) -> int:
        """The width of a text of one line as it is printed."""
        return cell_len(self.render_str(text).plain)


GAP = 3
"""Blanks between two columns of a table."""
TITLE = 16
"""The width to which a longer title is wrapped, at words, in a column of shorter texts."""


def _blocks(widths: Sequence[int], keys: int, width: int) -> Iterator[list[int]]:
    """The columns of each of the tables that a table with columns of these widths becomes."""
    first = list(range(keys))
    start = sum(widths[c] + GAP for c in first)
    block, used = list(first), start
    for c in range(keys, len(widths)):
        if len(block) > keys and used + widths[c] > width:
            yield block
            block, used = list(first), start
        block.append(c)
        used += widths[c] + GAP
    yield block


def terminal(stderr: bool = False) -> Terminal:
    """A console on stdout (or stderr) with the width that the terminal, or COLUMNS, has now."""
    return Terminal(stderr=stderr)
