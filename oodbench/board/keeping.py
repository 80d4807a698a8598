"""The commands by which a board is made, checked and kept."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from oodbench.board.files import datasets_to_come, find_board, frozen_folder, to_come
from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.report.options import Plugins, Rows
from oodbench.terminal import DataDir, commands, terminal

app = commands(__doc__)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A board by its name, or its folder.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")]


@app.command()
def rerun(
    name: Name,
    count: Annotated[int, typer.Option("--sample", min=1, help="Runs, chosen at random.")] = 20,
    seed: Annotated[int, typer.Option(help="The seed of that choice.")] = 0,
    algorithms: Rows = None,
    out: Annotated[Path | None, typer.Option(help="Keep the results here.")] = None,
    plugin: Plugins = None,
    workers: Workers = None,
    data_dir: DataDir = None,
) -> None:
    """Train random frozen runs again, as they were, and say how many equal the board's.

    Exits with 1 if a run is off or has no result.
    """
    from oodbench.board.rerun import rerun as train_again
    from oodbench.sweep.launch import LaunchOptions

    rows = [row.strip() for text in algorithms or () for row in text.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        options = LaunchOptions(
            out=out or Path(scratch) / "rerun",
            plugins=tuple(plugin or ()),
            workers=workers,
            data_dir=data_dir,
        )
        reruns = train_again(find_board(name), count, seed, options, rows)
    for sentence in reruns.sentences:
        terminal().say(sentence)
    if not reruns.agree:
        raise SystemExit(1)


@app.command()
def freeze(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A results directory.")],
    name: Name,
    plugin: Plugins = None,
    data_dir: DataDir = None,
) -> None:
    """Add the rows of a results directory to a board, as parts that never change again.

    The folder of a new board holds its sweep as protocol.yaml.
    """
    from oodbench.board.freeze import freeze as freeze_results
    from oodbench.registry import load_plugins
    from oodbench.report.numbers import counted

    load_plugins(plugin or [])
    board = Path(name) if "/" in name or Path(name).is_dir() else frozen_folder() / name
    parts = freeze_results(results, board, data_dir)
    terminal().say(
        f"New in {board}: {counted(len(parts.added), 'part')}; already there: {len(parts.there)}."
    )


@app.command()
def validate(
    what: Annotated[
        str, typer.Argument(metavar="NAME_OR_RESULTS", help="A board, or a results directory.")
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The board of a results directory.")
    ] = None,
    plugin: Plugins = None,
    data_dir: DataDir = None,
) -> None:
    """Say what is wrong with a board, or why results cannot be frozen.

    Exits with 1 if anything is wrong.
    """
    from oodbench.board.checks import wrong_board, wrong_results
    from oodbench.board.protocol import protocol_of
    from oodbench.registry import load_plugins
    from oodbench.results.directory import Results

    load_plugins(plugin or [])
    if (Path(what) / "sweep.json").exists():
        results = Results(Path(what))
        board = name or results.plan()["settings"].get("protocol")
        if board is None:
            raise UserError(f"{what} names no protocol: type the board after it")
        wrong = wrong_results(results.path, protocol_of(find_board(board)), data_dir)
    else:
        wrong = wrong_board(find_board(what))
        if coming := datasets_to_come(find_board(what)):
            terminal().say(f"{to_come(coming)}.")
    for sentence in wrong or [f"{what} is as it must be."]:
        terminal().say(sentence)
    if wrong:
        raise SystemExit(1)


@app.command()
def summarize(name: Name) -> None:
    """Write the summary of a board's parts, which `show` prints; `freeze` writes it, too."""
    from oodbench.board.summary import SUMMARY_FILE, write_summary

    board = find_board(name)
    write_summary(board)
    terminal().say(f"{board / SUMMARY_FILE} sums up the parts.")


@app.command()
def page(
    name: Name,
    out: Annotated[
        Path | None, typer.Option(help="The file, as HTML if it ends so; printed by default.")
    ] = None,
) -> None:
    """Write the page of a board as Markdown or HTML: its tables, and what follows from them."""
    from oodbench.board.page.contents import contents
    from oodbench.board.page.html import html_page
    from oodbench.board.page.markdown import markdown_page

    board = contents(name)
    text = html_page(board) if out and out.suffix == ".html" else markdown_page(board)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_whole(out, text)
