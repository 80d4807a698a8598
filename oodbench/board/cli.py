"""Boards on the command line: frozen results of many methods, and yours beside them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oodbench.board import keeping
from oodbench.board.asked import Asked
from oodbench.board.files import (
    board_names,
    datasets_to_come,
    find_board,
    part_files,
    to_come,
)
from oodbench.board.keeping import Name, Workers
from oodbench.errors import UserError
from oodbench.report.options import (
    Baseline,
    Datasets,
    Format,
    Metric,
    Notes,
    Plugins,
    Rows,
    Selection,
)
from oodbench.terminal import DataDir, commands, terminal

if TYPE_CHECKING:
    from oodbench.report.formats import Sheet

app = commands(
    __doc__,
    no_args_is_help=True,
    renamed={
        "submit": "an entry is a pull request; docs/tutorials/enter_the_board.md has its steps",
        "verify": "`board rerun NAME --algorithm ROW` trains frozen runs of a row again",
        "add": "`board freeze RESULTS NAME` adds rows to a board",
        "rerun --anyway": "`board rerun` trains frozen runs whatever version trained them",
        "freeze --as": "type the board after the results: `freeze RESULTS NAME`",
        "freeze --protocol": "copy the sweep of a new board to its folder, as protocol.yaml",
        "validate --board": "type the board after the results: `validate RESULTS NAME`",
    },
)

app.add_typer(keeping.app)

Directories = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[DIR]...", help="Results of runs under the board's protocol."),
]
RetrainStale = Annotated[
    bool, typer.Option("--retrain-stale", help="Train runs of changed code or data again.")
]
KeepStale = Annotated[bool, typer.Option("--keep-stale", help="Keep runs of changed code or data.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Only this dataset, by its label; several times. All frozen by default."),
]


@app.command("list")
def list_() -> None:
    """List the boards: datasets, rows, runs, size and the code that trained them."""
    from oodbench.board.parts import known_parts

    rows = []
    for name in board_names():
        files, parts = list(part_files(find_board(name))), known_parts(find_board(name))
        count = len({part.dataset for part in parts})
        labels = len({part.label for part in parts if not part.about.spec["ceiling"]})
        coming = len(datasets_to_come(find_board(name)))
        of_all = f"{count} of {count + coming}" if coming else str(count)
        runs = sum(len(part.ids) for part in parts)
        size = sum(file.stat().st_size for file in files) / 2**20
        made = [part.about.provenance for part in parts]
        codes = sorted({f"{p.get('oodbench', '?')}, {str(p.get('commit'))[:12]}" for p in made})
        rows.append((name, of_all, str(labels), f"{runs:,}", f"{size:.1f} MB", "; ".join(codes)))
    header = ("board", "datasets", "rows", "runs", "size", "version, commit")
    console = terminal()
    console.print(console.tables(header, rows, prose=(5,)), soft_wrap=True)


def _prints(sheets: Callable[[Asked], Iterable["Sheet"]]) -> None:
    """Register a command of this function's name and help that prints its sheets."""

    def command(
        name: Name,
        directories: Directories = None,
        selection: Selection = None,
        format_: Format = "terminal",
        dataset: Datasets = None,
        algorithms: Rows = None,
        baseline: Baseline = "ERM",
        metric: Metric = None,
        notes: Notes = False,
        plugin: Plugins = None,
    ) -> None:
        from oodbench.registry import load_plugins
        from oodbench.report.formats import print_sheet

        load_plugins(plugin or [])
        rows = (algorithms or (), baseline, metric)
        asked = Asked(name, directories or (), selection, dataset or (), *rows)
        for sheet in sheets(asked):
            print_sheet(sheet, format_, notes)

    app.command(sheets.__name__, help=sheets.__doc__)(command)


@_prints
def show(asked: Asked) -> Iterable["Sheet"]:
    """Print a board, and beside it the runs of results directories, as if all had been run together."""
    if asked.is_whole:
        from oodbench.board.summary import whole_board

        return [whole_board(find_board(asked.name))]
    from oodbench.board.show import shown_sheet

    return [shown_sheet(asked)]


@_prints
def compare(asked: Asked) -> Iterable["Sheet"]:
    """Compare the rows of a board, and of results beside it, with a baseline: gains, ranks, noise."""
    from oodbench.board.show import compared_sheet

    return [compared_sheet(asked)]


@app.command()
def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="curves, scatter, ranks or gains.")],
    name: Name,
    out: Annotated[Path, typer.Option(help="The file: .pdf, .svg or .png.")],
    directories: Directories = None,
    selection: Selection = None,
    dataset: Datasets = None,
    algorithms: Rows = None,
    baseline: Baseline = "ERM",
    plugin: Plugins = None,
) -> None:
    """Plot the gains or ranks of a board's rows, with those of results directories among them."""
    from oodbench.registry import load_plugins
    from oodbench.report.figures import plot, save

    load_plugins(plugin or [])
    asked = Asked(name, directories or (), selection, dataset or (), algorithms or (), baseline)
    save(plot(kind, asked.frames(), selection, baseline), out)
    terminal().say(str(out))


@app.command()
def html(
    name: Name,
    directories: Directories = None,
    out: Annotated[Path, typer.Option(help="The file.")] = Path("board.html"),
    dataset: Datasets = None,
    algorithms: Rows = None,
    baseline: Baseline = "ERM",
    metric: Metric = None,
    plugin: Plugins = None,
) -> None:
    """Write a board, with the runs of results directories beside it, as one HTML file."""
    from oodbench.registry import load_plugins
    from oodbench.report.html import write

    load_plugins(plugin or [])
    asked = Asked(name, directories or (), None, dataset or (), algorithms or (), baseline)
    write(directories or [], out, baseline, metric=metric, beside=(name, asked.frames()))
    terminal().say(f"{out}: {out.stat().st_size / 2**20:.1f} MB")


@app.command()
def run(
    name: Name,
    algorithms: Annotated[
        list[str],
        typer.Option(
            "--algorithm",
            "--algorithms",
            help="A method, or a row of the protocol, or all; several times, or with commas.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The results directory.")],
    plugin: Plugins = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Fewer than the protocol's.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Fewer than the protocol's.")] = None,
    dataset: Only = None,
    tier: Annotated[str | None, typer.Option(help="A tier of the board, such as lite.")] = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    retrain_stale: RetrainStale = False,
    keep_stale: KeepStale = False,
) -> None:
    """Train methods on the protocol of a board, and print them among its frozen rows.

    Datasets whose data or package are missing are left out, unless --dataset names them.
    """
    from oodbench.board.beside import beside_board, check_planned
    from oodbench.board.parts import known_parts
    from oodbench.board.protocol import find_tier, possible, protocol_of, restricted
    from oodbench.board.show import ending_sheet
    from oodbench.registry import load_plugins
    from oodbench.report.formats import print_sheet
    from oodbench.sweep.launch import LaunchOptions, is_complete, launch
    from oodbench.sweep.plan import make_plan
    from oodbench.sweep.stale import choice

    board = find_board(name)
    labels = [label.strip() for text in algorithms for label in text.split(",") if label.strip()]
    if not labels:
        raise UserError("--algorithm names no method")
    if tier:
        trials, draws, dataset = find_tier(board, tier).narrowed(trials, draws, dataset)
    load_plugins(plugin or ())
    parts = known_parts(board)
    frozen = list(dict.fromkeys(part.dataset for part in parts))
    sweep = restricted(protocol_of(board), labels, trials, draws, dataset or frozen)
    if not dataset:
        if parts and (coming := datasets_to_come(board)):
            terminal(stderr=True).say(f"{to_come(coming)}; they are left out")
        sweep = possible(sweep, data_dir)
    among = bool(parts) and set(dataset or ()) <= set(frozen)
    if among:
        check_planned(make_plan(sweep, data_dir).runs.values(), parts, board.name)
    options = LaunchOptions(
        out=out,
        plugins=tuple(plugin or ()),
        workers=workers,
        data_dir=data_dir,
        table=not among,
        stale=choice(retrain_stale, keep_stale),
    )
    counts = launch(sweep, options, terminal())
    if among:
        print_sheet(ending_sheet(name, out, beside_board(name, [out])), more="")
    if not is_complete(counts):
        raise SystemExit(1)


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="The results directory.")] = Path("results/quickstart"),
    workers: Workers = None,
    retrain_stale: RetrainStale = False,
    keep_stale: KeepStale = False,
) -> None:
    """Train four methods again, in about a minute, and print them among the board's rows."""
    from oodbench.board.beside import beside_board
    from oodbench.board.protocol import protocol_of, restricted
    from oodbench.board.show import (
        QUICK_BOARD,
        QUICK_DATASET,
        QUICK_ROWS,
        next_lines,
        quickstart_sheet,
    )
    from oodbench.report.formats import print_sheet
    from oodbench.report.html import write
    from oodbench.sweep.launch import LaunchOptions, is_complete, launch
    from oodbench.sweep.stale import choice

    protocol = protocol_of(find_board(QUICK_BOARD))
    sweep = restricted(protocol, QUICK_ROWS, datasets=[QUICK_DATASET])
    stale = choice(retrain_stale, keep_stale)
    options = LaunchOptions(out=out, workers=workers, table=False, stale=stale)
    counts = launch(sweep, options, terminal())
    frames = beside_board(QUICK_BOARD, [out])
    print_sheet(quickstart_sheet(frames, out), more="")
    if not is_complete(counts):
        raise SystemExit(1)
    page = out / "report.html"
    write([out], page, beside=(QUICK_BOARD, frames))
    for line in next_lines(frames, page):
        terminal().say(line)
