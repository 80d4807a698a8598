"""Boards on the command line: list, show, run, quickstart, rerun, freeze, validate, page, html."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oodbench.board.files import (
    PROTOCOL_FILE,
    board_names,
    find_board,
    find_reported,
    frozen_folder,
    part_files,
    reported_names,
)
from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.terminal import commands, exit_on_user_error, terminal

if TYPE_CHECKING:
    from oodbench.report.sheet import Sheet

app = commands(__doc__, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A board by its name, or its folder.")]
Directories = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[DIR]...", help="Results of runs under the board's protocol."),
]
Selection = Annotated[str | None, typer.Option(help="A rule, such as train_val; the protocol's.")]
Format = Annotated[
    str, typer.Option("--format", help="terminal, markdown, html, latex, csv or json.")
]
Dataset = Annotated[str | None, typer.Option(help="This one alone.")]
Baseline = Annotated[str, typer.Option(help="The row that others are compared with.")]
Metric = Annotated[str | None, typer.Option(help="Shown instead of the datasets' own.")]
Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", metavar="MODULE", help="Imported first.")
]
DataDir = Annotated[Path | None, typer.Option(help="Where datasets that need files find them.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")]


@app.command("list")
@exit_on_user_error
def list_() -> None:
    """Say which boards there are: datasets, rows, runs, size and the code that trained them."""
    from oodbench.board.parts import read_parts
    from oodbench.board.reported import read_reported

    console = terminal()
    rows = []
    for name in board_names():
        path = find_board(name)
        parts = read_parts(path) if any(part_files(path)) else []
        size = sum(file.stat().st_size for file in part_files(path))
        runs = sum(len(set(part.table["id"].to_pylist())) for part in parts)
        commits = sorted({str(p.about.provenance.get("commit") or "none")[:12] for p in parts})
        rows.append(
            (
                name,
                str(len({part.dataset for part in parts})),
                str(len({part.label for part in parts})),
                f"{runs:,}",
                f"{size / 2**20:.1f} MB",
                ", ".join(commits),
            )
        )
    for name in reported_names():
        table = read_reported(frozen_folder() / name).table
        datasets, methods = (str(table[column].nunique()) for column in ("dataset", "method"))
        rows.append((name, datasets, methods, "reported", "-", "-"))
    if not rows:
        console.say("There is no board yet; `freeze` makes one of a results directory.")
        return
    header = ("board", "datasets", "rows", "runs", "size", "commit")
    console.print(console.tables(header, rows, prose=(5,)), soft_wrap=True)


@app.command()
@exit_on_user_error
def show(
    name: Name,
    directories: Directories = None,
    selection: Selection = None,
    format_: Format = "terminal",
    dataset: Dataset = None,
    baseline: Baseline = "ERM",
    metric: Metric = None,
) -> None:
    """Print a board, and beside it the runs of results directories, as if all had been run together."""
    _show(name, directories or [], selection, format_, dataset, baseline, metric)


def _show(
    name: str,
    directories: Sequence[Path],
    selection: str | None = None,
    format_: str = "terminal",
    dataset: str | None = None,
    baseline: str = "ERM",
    metric: str | None = None,
) -> None:
    from oodbench.board.shown import kept_text

    reported = find_reported(name)
    if reported is not None:
        _show_reported(reported, directories, selection, format_, dataset)
        return

    def made() -> str:
        from oodbench.report.printing import sheet_text

        return sheet_text(_beside(name, directories, selection, dataset, baseline, metric), format_)

    if not directories and baseline != "ERM":
        raise UserError("--baseline compares rows trained here: name their results directories")
    key = (selection, dataset, format_, metric)
    print(made() if directories else kept_text(find_board(name), key, made), end="")


def _beside(
    name: str,
    directories: Sequence[Path],
    selection: str | None,
    dataset: str | None,
    baseline: str,
    metric: str | None,
) -> "Sheet":
    """The tables of a board and of what was trained here."""
    from oodbench.board.beside import beside_board
    from oodbench.board.standing import compare_own_rows
    from oodbench.report.leaderboard import leaderboard
    from oodbench.report.sheet import sheet
    from oodbench.results.join import only_dataset

    frames = beside_board(name, directories, allow_mixed=True)  # each is held to the protocol
    if dataset is not None:
        frames = only_dataset(frames, dataset)
    found = sheet(leaderboard(frames, selection, metric))
    own = compare_own_rows(frames, selection, baseline) if directories else None
    return found if own is None else replace(found, blocks=[*found.blocks, own])


def _show_reported(
    board: Path,
    directories: Sequence[Path],
    selection: str | None,
    format_: str,
    dataset: str | None,
) -> None:
    """Print reported numbers, and above them runs of the same datasets, by the same rule."""
    from oodbench.board.reported import read_reported, reported_sheet
    from oodbench.report.leaderboard import leaderboard
    from oodbench.report.printing import print_sheet
    from oodbench.report.sheet import sheet
    from oodbench.results.join import joined, only_dataset
    from oodbench.selection import usual

    numbers = read_reported(board)
    datasets = None if dataset is None else {dataset}
    if directories:
        frames = joined(directories)
        names = dict(zip(frames.runs["dataset_label"], frames.runs["dataset"], strict=True))
        selection = selection or usual(frames)
        known = set(numbers.table["dataset"])
        wanted = datasets or {n for pair in names.items() for n in pair if n in known}
        found = reported_sheet(numbers, selection, wanted or set(names.values()))
        for label, name in names.items():
            if {label, name} & wanted:
                print_sheet(sheet(leaderboard(only_dataset(frames, label), selection)), format_)
    else:
        found = reported_sheet(numbers, selection, datasets)
    print_sheet(found, format_)


@app.command()
@exit_on_user_error
def compare(
    name: Name,
    directories: Directories = None,
    baseline: Baseline = "ERM",
    selection: Selection = None,
    format_: Format = "terminal",
    metric: Metric = None,
    dataset: Dataset = None,
) -> None:
    """Compare all rows of a board, and of results beside it, with a baseline: gains, ranks, noise."""
    from oodbench.board.beside import beside_board
    from oodbench.report.comparison import comparison
    from oodbench.report.printing import print_sheet
    from oodbench.results.join import only_dataset

    frames = beside_board(name, directories or [], allow_mixed=True)
    if dataset is not None:
        frames = only_dataset(frames, dataset)
    print_sheet(comparison(frames, baseline, selection, metric), format_)


@app.command()
@exit_on_user_error
def run(
    name: Name,
    algorithms: Annotated[
        list[str],
        typer.Option(
            help="A method, or a row of the protocol; with commas, or several times; or all."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The results directory.")],
    plugin: Plugins = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Fewer than the protocol's.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Fewer than the protocol's.")] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="This one alone, by its label; several times. Those that are frozen."),
    ] = None,
    workers: Workers = None,
    data_dir: DataDir = None,
) -> None:
    """Train methods on the protocol of a board, all others being frozen, and print them in it.

    Datasets whose data or package are not there are left out, unless --dataset names them.
    """
    from oodbench.board.beside import check_planned
    from oodbench.board.parts import read_parts
    from oodbench.board.protocol import possible, protocol_of, restricted
    from oodbench.registry import load_plugins
    from oodbench.sweep.launch import LaunchOptions, is_complete, launch
    from oodbench.sweep.plan import make_plan

    board = find_board(name)
    labels = [label.strip() for text in algorithms for label in text.split(",") if label.strip()]
    if not labels:
        raise UserError("--algorithms names no method")
    load_plugins(plugin or ())
    parts = read_parts(board) if any(part_files(board)) else []
    frozen = list(dict.fromkeys(part.dataset for part in parts))
    sweep = restricted(protocol_of(board), labels, trials, draws, dataset or frozen)
    if not dataset:
        sweep = possible(sweep, data_dir)
    among = bool(parts) and set(dataset or ()) <= set(frozen)
    if among:
        check_planned(make_plan(sweep, data_dir).runs.values(), parts, board.name)
    options = LaunchOptions(
        out=out, plugins=tuple(plugin or ()), workers=workers, data_dir=data_dir, table=not among
    )
    counts = launch(sweep, options, terminal())
    if among:
        _show(name, [out])
    if not is_complete(counts):
        raise SystemExit(1)


@app.command()
@exit_on_user_error
def quickstart(
    out: Annotated[Path, typer.Option(help="The results directory.")] = Path("results/quickstart"),
    workers: Workers = None,
) -> None:
    """Train four methods again, in about a minute, and print them among all that the board has."""
    from oodbench.board.beside import beside_board
    from oodbench.board.protocol import protocol_of, restricted
    from oodbench.board.quickstart import BOARD, DATASET, ROWS, next_lines, quick_sheet
    from oodbench.report.html.render import write
    from oodbench.report.printing import print_sheet
    from oodbench.sweep.launch import LaunchOptions, is_complete, launch

    sweep = restricted(protocol_of(find_board(BOARD)), ROWS, datasets=[DATASET])
    options = LaunchOptions(out=out, workers=workers, table=False)
    counts = launch(sweep, options, terminal())
    frames = beside_board(BOARD, [out])
    print_sheet(quick_sheet(frames, out), "terminal")
    if not is_complete(counts):
        raise SystemExit(1)
    page = out / "report.html"
    write([out], page, beside=(BOARD, frames))
    for line in next_lines(frames, page):
        terminal().say(line)


@app.command()
@exit_on_user_error
def rerun(
    name: Name,
    count: Annotated[int, typer.Option("--sample", min=1, help="Runs, chosen at random.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the choice.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Keep the results here.")] = None,
    plugin: Plugins = None,
    workers: Workers = None,
    data_dir: DataDir = None,
) -> None:
    """Train random frozen runs again, as they were, and say how many are what is frozen.

    Exits with 1 if one of them is off or has no result.
    """
    from oodbench.board.rerun import Agreement, counted
    from oodbench.board.rerun import rerun as train_again
    from oodbench.sweep.launch import LaunchOptions

    console = terminal()
    with tempfile.TemporaryDirectory() as scratch:
        options = LaunchOptions(
            out=out or Path(scratch) / "rerun",
            plugins=tuple(plugin or ()),
            workers=workers,
            data_dir=data_dir,
        )
        found = train_again(find_board(name), count, seed, options)
    counts = counted(found)
    for run in found:
        if run.agreement in (Agreement.OFF, Agreement.MISSING):
            spec = run.spec
            console.say(
                f"{run.agreement}: {spec.label} on {spec.dataset_name}, trial {spec.trial}, draw "
                f"{spec.draw} (run {spec.id}), by {run.furthest:.3g} at most"
            )
    told = ", ".join(f"{counts[agreement]} {agreement}" for agreement in Agreement)
    console.say(f"Of {len(found)} runs of {name} that were trained again: {told}.")
    if counts[Agreement.OFF] or counts[Agreement.MISSING]:
        raise SystemExit(1)


@app.command()
@exit_on_user_error
def freeze(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A results directory.")],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="A board, or a folder.")],
    protocol: Annotated[
        str | None,
        typer.Option(help="The sweep of a new board, by its file or its name in sweeps/."),
    ] = None,
    plugin: Plugins = None,
    data_dir: DataDir = None,
) -> None:
    """Add the rows of a results directory to a board, as parts that never change again."""
    from oodbench.board.freeze import freeze as freeze_results
    from oodbench.registry import load_plugins
    from oodbench.sweep.file import find_sweep

    load_plugins(plugin or [])
    board = Path(name) if "/" in name or Path(name).is_dir() else frozen_folder() / name
    stored = board / PROTOCOL_FILE
    if protocol is None and not stored.is_file():
        raise UserError(f"there is no board {name} yet: name its sweep with --protocol")
    file = stored if protocol is None else find_sweep(protocol)
    found = freeze_results(results, board, file, data_dir)
    terminal().say(
        f"{len(found.added)} parts are new in {board}, {len(found.there)} were there already."
    )


@app.command()
@exit_on_user_error
def validate(
    what: Annotated[
        str, typer.Argument(metavar="NAME_OR_RESULTS", help="A board, or a results directory.")
    ],
    board: Annotated[str | None, typer.Option(help="The board of a results directory.")] = None,
    plugin: Plugins = None,
    data_dir: DataDir = None,
) -> None:
    """Say what a board lacks or holds amiss, or what keeps results from being frozen.

    Exits with 1 if there is anything.
    """
    from oodbench.board.protocol import protocol_of
    from oodbench.board.validate import wrong_board, wrong_results
    from oodbench.registry import load_plugins
    from oodbench.results.directory import Results
    from oodbench.results.frames import load_frames

    load_plugins(plugin or [])
    console = terminal()
    if (Path(what) / "sweep.json").exists():
        results = Results(Path(what))
        under = board or results.plan()["settings"].get("protocol")
        if under is None:
            raise UserError(f"{what} names no protocol: name its board with --board")
        wrong = wrong_results(load_frames(results), protocol_of(find_board(under)), data_dir)
    else:
        wrong = wrong_board(find_board(what), data_dir)
    for sentence in wrong:
        console.say(sentence)
    if wrong:
        raise SystemExit(1)
    console.say(f"{what} is as it must be.")


@app.command()
@exit_on_user_error
def page(
    name: Name,
    out: Annotated[
        Path | None, typer.Option(help="The file, as HTML if it ends so; printed by default.")
    ] = None,
) -> None:
    """Write the page of a board as Markdown or HTML: its tables, and what follows from them."""
    from oodbench.board.page import html_page
    from oodbench.board.page import page as written

    text = written(name)
    if out is not None and out.suffix == ".html":
        text = html_page(text)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_whole(out, text)


@app.command()
@exit_on_user_error
def html(
    name: Name,
    directories: Directories = None,
    out: Annotated[Path, typer.Option(help="The file.")] = Path("board.html"),
    baseline: Baseline = "ERM",
    metric: Metric = None,
) -> None:
    """Write a board, with the runs of results directories beside it, as one HTML file."""
    from oodbench.board.beside import beside_board
    from oodbench.report.html.render import write

    frames = beside_board(name, directories or [], allow_mixed=True)
    write(directories or [], out, baseline, metric=metric, beside=(name, frames))
    terminal().say(f"{out}: {out.stat().st_size / 2**20:.1f} MB")
