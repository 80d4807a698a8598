"""Leaderboards on the command line: python -m oodbench.report table DIR. Imports no torch."""

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from tabulate import tabulate

from oodbench.errors import reports_mistakes, unknown
from oodbench.records import Results
from oodbench.selection import RULES
from oodbench.tables import Block, Leaderboard, blocks, leaderboard

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The results directory.")]
Baseline = Annotated[str, typer.Option(help="The algorithm that others are compared with.")]

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


def terminal(board: Leaderboard, console: Console | None = None) -> str:
    """Tables for a terminal (with its colours if it has any); never cuts a number to its width."""
    console = console or Console()
    width = console.width
    unlimited = console.options.update(max_width=10_000)
    with console.capture() as capture:
        for block in blocks(board):
            table = _rich(block)
            console.width = max(width, Measurement.get(console, unlimited, table).maximum)
            console.print(table)
        console.width = width
        for note in board.notes:
            console.print(Text(note))
    return capture.get()


def _rich(block: Block) -> Table:
    table = Table(title=Text(block.title), title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(block.header):
        table.add_column(Text(name), justify="right" if i else "left", no_wrap=True)
    for r, row in enumerate(block.rows):
        styles = ["bold" if (r, c) in block.best else "" for c in range(len(row))]
        cells = [Text(text, style=style) for text, style in zip(row, styles, strict=True)]
        table.add_row(*cells, end_section=r + 1 == block.ranked)
    return table


def markdown(board: Leaderboard) -> str:
    """A heading and a pipe table for each block, then the notes as a list."""
    parts = []
    for block in blocks(board):
        escape = _markdown_escaped
        rows = _marked(block, escape, "**{}**")
        header = [escape(name) for name in block.header]
        align = ["left", *["right"] * (len(header) - 1)]
        table = tabulate(rows, header, "pipe", disable_numparse=True, colalign=align)
        parts.append(f"### {escape(block.title)}\n\n{table}\n")
    return "\n".join([*parts, *[f"- {_markdown_escaped(note)}" for note in board.notes], ""])


def _markdown_escaped(text: str) -> str:
    return re.sub(r"([\\`*<|])", r"\\\1", text.replace("\n", " "))


def latex(board: Leaderboard) -> str:
    """A booktabs table for each block, to paste into a paper; further notes as comments."""
    parts = ["% needs \\usepackage{booktabs}"]
    for block in blocks(board):
        caption = _latex_escaped(" ".join([f"{block.title}.", *board.notes[:-2]]))
        lines = [
            f"{' & '.join(row)} \\\\" for row in _marked(block, _latex_escaped, r"\textbf{{{}}}")
        ]
        if 0 < block.ranked < len(lines):
            lines.insert(block.ranked, r"\midrule")
        parts += [
            r"\begin{table}",
            r"\centering",
            f"\\caption{{{caption}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(block.header) - 1)}}}",
            r"\toprule",
            f"{' & '.join(_latex_escaped(name) for name in block.header)} \\\\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    return "\n".join([*parts, *[f"% {' '.join(note.split())}" for note in board.notes[-2:]], ""])


def _latex_escaped(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def _marked(block: Block, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """The rows, escaped, with the best values in bold."""
    return [
        [
            bold.format(escape(text)) if (r, c) in block.best else escape(text)
            for c, text in enumerate(row)
        ]
        for r, row in enumerate(block.rows)
    ]


def csv(board: Leaderboard) -> str:
    """`Leaderboard.frame` in full precision; NaN is empty."""
    return board.frame.to_csv(index=False)


def to_json(board: Leaderboard) -> str:
    """`Leaderboard.frame` as a list of objects in full precision; NaN is null."""
    rows = board.frame.to_dict(orient="records")
    tidy = [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}
        for row in rows
    ]
    return json.dumps(tidy, indent=1, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[Leaderboard], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "latex": latex,
    "csv": csv,
    "json": to_json,
}
"""The formats of a leaderboard by name."""


def print_table(
    results: Results,
    selection: str = "train_val",
    format_: str = "terminal",
    metric: str | None = None,
) -> None:
    """Print the leaderboard of a results directory; raises UserError for unknown names."""
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    print(FORMATS[format_](leaderboard(results.load(), selection, metric)), end="")


@app.callback()
def _commands() -> None:
    """Leaderboards of a results directory."""


@app.command()
@reports_mistakes
def table(
    directory: Directory,
    selection: Annotated[str, typer.Option(help=f"{', '.join(RULES)}.")] = "train_val",
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "terminal",
    metric: Annotated[str | None, typer.Option(help="Shown instead of the datasets' own.")] = None,
) -> None:
    """Print the leaderboard: test environments, their average, mean ± standard error, counts."""
    print_table(Results(directory), selection, format_, metric)


@app.command()
@reports_mistakes
def html(
    directory: Directory,
    out: Annotated[Path | None, typer.Option(help="The file; DIR/report.html by default.")] = None,
    baseline: Baseline = "ERM",
) -> None:
    """Write the report as one HTML file that needs no network."""
    from oodbench.html import write

    path = out or directory / "report.html"
    write(Results(directory), path, baseline)
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MB")


@app.command()
@reports_mistakes
def watch(
    directory: Directory,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    baseline: Baseline = "ERM",
) -> None:
    """Serve the report on this machine alone; an open page follows the sweep while it runs."""
    from oodbench.watch import Server

    with Server(Results(directory), port, baseline) as server:
        with suppress(KeyboardInterrupt):
            print(f"{server.url} (Ctrl-C ends)", flush=True)
            server.serve_forever()


@app.command()
@reports_mistakes
def why(
    directory: Directory,
    dataset: Annotated[str | None, typer.Option(help="As the table names it.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="The row of the table.")] = None,
    test_env: Annotated[str | None, typer.Option(help="Several are joined by +.")] = None,
    selection: Annotated[str, typer.Option(help=f"{', '.join(RULES)}.")] = "train_val",
) -> None:
    """List the runs, draws and steps behind a cell, and which were chosen."""
    from oodbench import why as room

    cell = room.why(Results(directory).load(), dataset, algorithm, test_env, selection)
    print(room.text(cell), end="")


if __name__ == "__main__":
    app()
