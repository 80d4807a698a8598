"""The commands by which an author's rows enter a board: submit, verify, add."""

from pathlib import Path
from typing import Annotated

import typer

from oodbench.board.files import find_board
from oodbench.errors import UserError
from oodbench.terminal import DataDir, Plugins, commands, terminal

app = commands(__doc__)

Archive = Annotated[Path, typer.Argument(metavar="NAME.zip", help="A submission.")]
Board = Annotated[
    str | None, typer.Argument(metavar="[BOARD]", help="The board; the one it names by default.")
]


@app.command()
def submit(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="A results directory.")],
    board: Board = None,
    out: Annotated[Path, typer.Option("--as", help="The file.")] = Path("submission.zip"),
    author: Annotated[str, typer.Option(help="Who submits, with an address.")] = "",
    pretraining: Annotated[
        str, typer.Option(help="What the networks had seen before, such as 'none'.")
    ] = "",
    plugin: Plugins = None,
    data_dir: DataDir = None,
) -> None:
    """Write the rows of a method as one file: parts, the method's file, versions, paper, pretraining."""
    from oodbench.board.submission import submit as submit_rows
    from oodbench.registry import load_plugins
    from oodbench.results.directory import Results

    if not author.strip() or not pretraining.strip():
        raise UserError("--author and --pretraining must say something, such as 'none'")
    load_plugins(plugin or [])
    name = board or Results(results).plan()["settings"].get("protocol")
    if name is None:
        raise UserError(f"{results} names no protocol: type the board after it")
    about = submit_rows(results, find_board(name), out, author, pretraining, data_dir)
    size = out.stat().st_size / 2**20
    terminal().say(f"{out} has {', '.join(about.rows)} for {about.board}: {size:.2f} MB.")


@app.command()
def verify(
    archive: Archive,
    board: Board = None,
    count: Annotated[int, typer.Option("--sample", min=1, help="Runs, chosen at random.")] = 20,
    seed: Annotated[int | None, typer.Option(help="The seed of that choice.")] = None,
    verifier: Annotated[str, typer.Option("--by", help="Who verifies.")] = "a maintainer",
    trust: Annotated[bool, typer.Option("--run-code", help="Run the method's file.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Train random runs of a submission again, by its own file: all are equal, or it is refused.

    The file is a stranger's code: it runs as you, in a process of its own, in an empty folder, without your
    environment variables. That is no sandbox: read the file first.
    """
    from oodbench.board.entries import receipt_file
    from oodbench.board.submission import inspected
    from oodbench.board.verification import verify as verify_rows

    about = inspected(archive, board)
    place = find_board(board or about.board)
    method = next(name for name in about.files if name.startswith("method/"))
    if not trust:
        raise UserError(
            f"{archive} is whole and of {place.name}'s protocol; verifying runs its {method} with your "
            "rights: read that file, then add --run-code"
        )
    terminal(stderr=True).say(f"The code of a stranger runs now: {method} of {archive}.")
    receipt = verify_rows(archive, place, verifier, count, seed, data_dir, workers)
    terminal().say(
        f"{receipt.runs} runs of {archive} were trained again by {receipt.code} (seed {receipt.seed}): "
        f"all are equal bit for bit. {receipt_file(archive)} says so."
    )


@app.command()
def add(archive: Archive, board: Board = None) -> None:
    """Add the rows of a submission to its board, as verified if its receipt stands beside it."""
    from oodbench.board.submission import add as add_rows
    from oodbench.board.submission import inspected

    place = find_board(board or inspected(archive, board).board)
    entry = add_rows(archive, place)
    rows = ", ".join(entry.about.rows)
    terminal().say(f"{rows} is on {place} now: {entry.status}.")
