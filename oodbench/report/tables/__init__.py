"""Tables and their formats: terminal, notebook, Markdown, LaTeX, CSV, JSON."""

import json
import math
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from oodbench.errors import unknown
from oodbench.notes import AnyNote, Note
from oodbench.report.numbers import Cell
from oodbench.terminal import Terminal, printable, printable_json, terminal

if TYPE_CHECKING:
    import pandas as pd

Marks = set[tuple[int, int]]
"""Cells as (row, column)."""
Styles = dict[tuple[int, int], str]
"""The style of cells by (row, column)."""


@dataclass(frozen=True)
class Block:
    """A table with marked cells."""

    title: str
    header: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    """The rows; `-` for a missing number."""
    ranked: int
    """The number of ranked (complete) rows, which come first, the best at the top."""
    best: Marks = field(default_factory=set)
    near: Marks = field(default_factory=set)
    """Values within a standard error of a best one."""
    second: Marks = field(default_factory=set)
    """Runners-up, which papers underline."""
    grey: int = 0
    """The number of rows that are not methods, which come last."""
    keys: int = 1
    """The number of columns that name a row, which come first."""
    fits: Collection[int] = ()
    """The columns of the short form for a screen."""
    explains_bold: bool = False
    """Whether the title says what is bold; by default it is the best value."""

    @property
    def rows(self) -> list[list[str]]:
        """The cells as texts."""
        return [[str(cell) for cell in row] for row in self.cells]

    def styles(self, best: str, underlined: str, grey: str, in_paper: bool = False) -> Styles:
        """Styles of the marked cells; papers underline runners-up, other formats values near the best."""
        styles = dict.fromkeys(self.second if in_paper else self.near, underlined)
        styles |= dict.fromkeys(self.best, best)
        rows = range(len(self.cells) - self.grey, len(self.cells))
        return styles | {(row, c): grey for row in rows for c in range(len(self.header))}

    def part(self, rows: Sequence[int], columns: Sequence[int]) -> "Block":
        """The block with only these rows and columns; cells keep their marks."""
        moved = {(r, c): (i, j) for i, r in enumerate(rows) for j, c in enumerate(columns)}
        best, near, second = (
            {moved[cell] for cell in marks & moved.keys()}
            for marks in (self.best, self.near, self.second)
        )
        return replace(
            self,
            header=[self.header[c] for c in columns],
            cells=[[self.cells[r][c] for c in columns] for r in rows],
            ranked=sum(r < self.ranked for r in rows),
            grey=sum(r >= len(self.cells) - self.grey for r in rows),
            best=best,
            near=near,
            second=second,
        )


@dataclass(frozen=True)
class Sheet:
    """A report as it is printed: tables, notes, and the numbers behind them."""

    blocks: list[Block]
    notes: tuple[AnyNote, ...]
    """The notes of a caption."""
    remarks: tuple[AnyNote, ...]
    """The notes that a paper leaves out: counts and code."""
    frame: "pd.DataFrame"
    """The numbers behind the tables, one per row."""
    marks: tuple[str, ...] = ()
    """What bold and underlined mean, for formats that have them."""
    paper: Block | None = None
    """The table for a paper; None means all blocks."""
    findings: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What audits found in the data, by dataset label."""

    @property
    def all_notes(self) -> tuple[AnyNote, ...]:
        """All notes in order."""
        return *self.notes, *self.marks, *self.remarks

    def _repr_html_(self) -> str:
        """The tables and the notes as a notebook shows them."""
        parts = [f"<h4>{escape(b.title)}</h4>{_tabulated(b, 'unsafehtml')}" for b in self.blocks]
        return "".join([*parts, *[f"<p>{escape(str(note))}</p>" for note in self.all_notes]])


NOTES = "`--notes` prints these lines in full."
"""The line below footnotes."""


def to_terminal(
    tables: Sheet, console: Terminal | None = None, whole: bool = False, more: str = NOTES
) -> str:
    """Tables in the width and colours of a terminal; no number is cut.

    Below are the notes, in full if `whole`, else their footnotes and `more`, a line that says how to read
    the notes in full.
    """
    console = console or terminal()
    with console.capture() as capture:
        for block in tables.blocks:
            console.say(block.title)
            ranked = block.ranked if block.ranked < len(block.rows) else 0
            styles = block.styles("bold", "underline", "bright_black")
            table = console.tables(
                block.header, block.rows, keys=block.keys, line_after=ranked, styles=styles
            )
            console.print(table, soft_wrap=True)
        styled = console.color_system is not None
        notes = [*(tables if styled else replace(tables, marks=())).all_notes]
        briefs = (note.brief if isinstance(note, Note) else note for note in notes)
        shown = notes if whole else [*filter(None, briefs)]
        for note in shown:
            console.say(str(note))
        if more and shown != notes:
            console.say(more)
    return capture.get()


def _marked(block: Block, render: Callable[[Any], str], styles: Styles) -> list[list[str]]:
    return [
        [styles.get((r, c), "{}").format(render(cell)) for c, cell in enumerate(row)]
        for r, row in enumerate(block.cells)
    ]


def markdown(tables: Sheet) -> str:
    """A heading and a table for each block, and a list of the notes."""
    parts = [
        f"### {_markdown_escaped(block.title)}\n\n{_tabulated(block, 'pipe')}\n"
        for block in tables.blocks
    ]
    notes = [f"- {_markdown_escaped(str(note))}" for note in tables.all_notes]
    return "\n".join([*parts, *notes, ""])


def _tabulated(block: Block, style: str) -> str:
    from tabulate import tabulate

    escaped: Callable[[str], str] = _markdown_escaped if style == "pipe" else escape
    best, grey = ("**{}**", "*{}*") if style == "pipe" else ("<b>{}</b>", "<i>{}</i>")
    rows = _marked(block, lambda cell: escaped(str(cell)), block.styles(best, "<u>{}</u>", grey))
    align = [*["left"] * block.keys, *["right"] * (len(block.header) - block.keys)]
    header = list(map(escaped, block.header))
    return tabulate(rows, header, style, disable_numparse=True, colalign=align)


def _markdown_escaped(text: str) -> str:
    return re.sub(r"([\\`*<|])", r"\\\1", printable(text.replace("\n", " ")))


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "[": "{[}",  # \\ and \midrule would read [ or * as their own argument
    "*": "{*}",
    "\n": " ",
} | {c: f"\\{c}" for c in "&%$#_{}"}
PACKAGES = {r"\toprule": "booktabs", r"\textcolor": "xcolor", r"\resizebox": "graphicx"}
"""The packages of LaTeX's commands."""
LINE = 84
"""The characters of a row beyond which a table is scaled to the width of the text."""


def latex(tables: Sheet) -> str:
    """The paper's table in the style of booktabs, or one for each block, with the notes as comments.

    The best values are bold, runners-up underlined, errors small. The caption is the title, the label
    `tab:` and the title's letters and digits.
    """
    blocks = tables.blocks if tables.paper is None else [tables.paper]
    tabulars = list(map(_tabular, blocks))
    packages = [name for mark, name in PACKAGES.items() if mark in "".join(tabulars)]
    notes = [*tables.notes]
    if any(block.best and not block.explains_bold for block in blocks):
        notes.append("Bold: the best value. Underlined: the runner-up.")
    lines = [f"% needs \\usepackage{{{', '.join(packages)}}}"]
    lines += [f"% {printable(' '.join(str(n).split()))}" for n in (*notes, *tables.remarks)]
    for block, tabular in zip(blocks, tabulars, strict=True):
        title = block.title.partition(";")[0].lower()
        lines += [
            "",
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{_latex_escaped(block.title)}}}",
            f"\\label{{tab:{re.sub('[^a-z0-9]+', '-', title).strip('-')}}}",
            tabular,
            r"\end{table}",
        ]
    return "\n".join([*lines, ""])


def _tabular(block: Block) -> str:
    styles = (r"\textbf{{{}}}", r"\underline{{{}}}", r"\textcolor{{gray}}{{{}}}")
    cells = _marked(block, _latex_cell, block.styles(*styles, in_paper=True))
    rows = [f"{' & '.join(row)} \\\\" for row in cells]
    if 0 < block.ranked < len(rows):
        rows.insert(block.ranked, r"\midrule")
    titles = [*map(_latex_escaped, block.header[: block.keys])]
    titles += [_stacked(name) for name in block.header[block.keys :]]
    lines = [
        f"\\begin{{tabular}}{{{'l' * block.keys}{'r' * (len(block.header) - block.keys)}}}",
        r"\toprule",
        f"{' & '.join(titles)} \\\\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    columns = zip(*block.rows, strict=True) if block.rows else [block.header]
    if sum(max(map(len, column)) + 2 for column in columns) > LINE:
        return "\n".join([r"\resizebox{\textwidth}{!}{%", *lines]) + "%\n}"
    return "\n".join(lines)


def _stacked(title: str) -> str:
    lines = textwrap.wrap(title, 11, break_long_words=False, break_on_hyphens=False)
    if len(lines) < 2:
        return _latex_escaped(title)
    stacked = r" \\ ".join(map(_latex_escaped, lines))
    return rf"\shortstack[r]{{{stacked}}}"


def _latex_cell(cell: Cell) -> str:
    if isinstance(cell, str) or not cell.error:
        return _latex_escaped(str(cell))
    return rf"{_latex_escaped(cell.text)} {{\scriptsize $\pm$ {_latex_escaped(cell.error)}}}"


def _latex_escaped(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in printable(text, "\n"))


ERRORS = (
    "stderr: standard error of the mean over n trials (ddof=1); "
    "low, high: its 95 % interval by Student's t with n - 1 degrees of freedom"
)
"""The explanation of `stderr`, `low` and `high`, which is in every row of a file."""


def csv(tables: Sheet) -> str:
    """`Sheet.frame` in full precision with 95 % intervals; NaN is empty, control characters are escaped."""
    table = _with_intervals(tables.frame)
    table = table.map(lambda value: printable(value) if isinstance(value, str) else value)
    return str(table.to_csv(index=False))


def to_json(tables: Sheet) -> str:
    """The rows of `csv` as a list of objects, with the findings on their data; NaN is null."""
    tidy = [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}
        for row in _with_intervals(tables.frame).to_dict(orient="records")
    ]
    for row in tidy:
        if found := tables.findings.get(str(row.get("dataset"))):
            row["findings"] = found
    return printable_json(json.dumps(tidy, indent=1, ensure_ascii=False)) + "\n"


def _with_intervals(frame: "pd.DataFrame") -> "pd.DataFrame":
    if "stderr" not in frame:
        return frame
    from oodbench.report.statistics import half_width  # brings pandas and scipy

    half = frame["stderr"] * half_width(frame.get("defined", frame["n"]).to_numpy())
    wide, place = frame.copy(), list(frame).index("stderr") + 1
    wide.insert(place, "low", frame["mean"] - half)
    wide.insert(place + 1, "high", frame["mean"] + half)
    return wide.assign(errors=ERRORS)


FORMATS: dict[str, Callable[[Sheet], str]] = {
    "terminal": to_terminal,
    "markdown": markdown,
    "latex": latex,
    "csv": csv,
    "json": to_json,
}
"""The formats of a sheet by name."""


def print_sheet(
    tables: Sheet, format_: str = "terminal", whole: bool = False, more: str = NOTES
) -> None:
    """Print tables in a format; `whole` and `more` are those of `to_terminal`.

    Raises UserError for an unknown format.
    """
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    is_terminal = format_ == "terminal"
    text = to_terminal(tables, None, whole, more) if is_terminal else FORMATS[format_](tables)
    print(text, end="")
