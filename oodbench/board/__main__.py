"""Boards on the command line: frozen results of many methods, and yours with them."""

from oodbench.arithmetic import prepare

if __name__ == "__main__":
    prepare()  # before numpy and torch are loaded

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from oodbench.errors import UserError
from oodbench.report.__main__ import Rows
from oodbench.results.boards import (
    RECORDS_FILE,
    RUNS_FILE,
    board_names,
    columns_of,
    datasets_to_come,
    find_board,
    frozen_datasets,
    frozen_folder,
    nothing_frozen,
    to_come,
)
from oodbench.sweep.file import from_commas
from oodbench.terminal import (
    DataDir,
    Plugins,
    Stale,
    StepsPerSecond,
    Workers,
    commands,
    counted,
    terminal,
)

app = commands(__doc__, no_args_is_help=True)

Board = Annotated[str, typer.Argument(metavar="NAME", help="A board by its name, or its folder.")]
Dataset = Annotated[
    list[str] | None,
    typer.Option(help="Only this dataset, by its label; several times. All frozen by default."),
]
TierName = Annotated[str | None, typer.Option(help="A tier of the board, such as lite.")]


@app.command("list")
def list_() -> None:
    """List the boards: datasets, rows, runs, size and the code that trained them."""
    rows, empty = [], []
    names = ("dataset_label", "label", "ceiling", "provenance")
    for name in board_names():
        board = find_board(name)
        if not (board / RUNS_FILE).is_file():
            empty.append(f"{name} has {nothing_frozen(board)}")
            continue
        frozen, labels, ceilings, made = columns_of(board, names)
        count, coming = len(set(frozen)), len(datasets_to_come(board))
        plain = {label for label, ceiling in zip(labels, ceilings, strict=True) if not ceiling}
        codes = {
            f"{p.get('oodbench', '?')}, {str(p.get('commit'))[:12]}"
            for p in map(json.loads, set(made))
        }
        size = sum((board / file).stat().st_size for file in (RUNS_FILE, RECORDS_FILE)) / 2**20
        of_all = f"{count} of {count + coming}" if coming else str(count)
        counts = (of_all, str(len(plain)), f"{len(labels):,}", f"{size:.1f} MB")
        rows.append((name, *counts, "; ".join(sorted(codes))))
    header = ("board", "datasets", "rows", "runs", "size", "version, commit")
    console = terminal()
    console.print(console.tables(header, rows, prose=(5,)), soft_wrap=True)
    for sentence in empty:
        console.say(sentence)


@app.command()
def show(name: Board) -> None:
    """Show a board's protocol: its datasets with tiers, test sets, runs, frozen rows, and pretraining."""
    from oodbench.board.protocol import overview

    board, console = find_board(name), terminal()
    header = ("dataset", "tier", "test sets", "runs", "frozen rows", "pretraining")
    console.print(console.tables(header, overview(board), prose=(5,)), soft_wrap=True)
    if not frozen_datasets(board):
        console.say(f"{name} has {nothing_frozen(board)}")


@app.command()
def cache(
    name: Board,
    data_dir: Annotated[Path, typer.Option(help="Where pictures and weights are.")],
    tier: TierName = None,
) -> None:
    """Extract the features of a board's datasets once, on a GPU if there is one.

    Datasets without their pictures or weights are left out.
    """
    from oodbench.board.protocol import cache_features, find_tier, protocol_of, restricted

    board = find_board(name)
    labels = find_tier(board, tier).datasets
    cache_features(restricted(protocol_of(board), ["all"], datasets=labels), data_dir)


@app.command()
def run(
    name: Board,
    algorithms: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            "--algorithms",
            help="A method, a row of the protocol, or all (the default); repeatable, or with commas.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The results directory; results/NAME or results/NAME-TIER by default."),
    ] = None,
    plugin: Plugins = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Fewer than the protocol's.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Fewer than the protocol's.")] = None,
    dataset: Dataset = None,
    tier: TierName = None,
    features: Annotated[
        Path | None,
        typer.Option(help="A file of your features, instead of those of --dataset."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Train nothing: show the runs, and how long they take.")
    ] = False,
    workers: Workers = None,
    steps_per_second: StepsPerSecond = None,
    data_dir: DataDir = None,
    stale: Stale = None,
) -> None:
    """Train methods on the protocol of a board, and print them among its frozen rows.

    Datasets without their data or package are left out, unless --dataset names them. Rows on other features
    are printed alone.
    """
    from oodbench.board.protocol import find_tier, possible, protocol_of, restricted, with_features
    from oodbench.registry import load_plugins
    from oodbench.report.comparison import board_sheet
    from oodbench.report.sources import beside_board, check_planned
    from oodbench.report.tables import print_sheet
    from oodbench.results.read import read_board
    from oodbench.sweep.__main__ import show_time
    from oodbench.sweep.launch import LaunchOptions, is_complete, launch
    from oodbench.sweep.plan import make_plan, show_plan
    from oodbench.sweep.resolve import looked_up

    if steps_per_second and not plan:
        raise UserError("--steps-per-second is for --plan")
    board = find_board(name)
    labels = [label for text in algorithms or ["all"] for label in from_commas(text) if label]
    if not labels:
        raise UserError("--algorithm names no method")
    part = find_tier(board, tier)
    load_plugins(plugin or ())
    chosen, frozen = dataset or part.datasets, frozen_datasets(board)
    sweep = restricted(
        protocol_of(board),
        labels,
        trials or part.trials,
        draws or part.draws,
        chosen or frozen,
    )
    if features:
        sweep = with_features(sweep, features)
    if not chosen and frozen and (coming := datasets_to_come(board)):
        terminal(stderr=True).say(f"{to_come(coming)}; they are left out")
    if not dataset:
        in_use: list[object] = []  # a folder is listed once while its dataset is in use
        sweep = possible(sweep, lambda entry: in_use.append(looked_up(entry, data_dir)))
    if plan:
        made = make_plan(sweep, data_dir)
        show_plan(made, terminal())
        return show_time(made, data_dir, workers, steps_per_second)
    out = out or Path("results") / (f"{board.name}-{tier}" if tier else board.name)
    among = bool(frozen) and not features and set(chosen) <= set(frozen)
    if among:
        check_planned(make_plan(sweep, data_dir).rows, read_board(board).runs, board.name)
    options = LaunchOptions(
        out=out,
        plugins=tuple(plugin or ()),
        workers=workers,
        data_dir=data_dir,
        table=not among,
        failed=True,
        stale=stale or "",
    )
    counts = launch(sweep, options)
    if among:
        more = f"All rows: `python -m oodbench.report table {name} {out} --notes`."
        print_sheet(board_sheet(beside_board(name, [out]), short=True), more=more)
    if not is_complete(counts):
        raise SystemExit(1)


@app.command()
def rerun(
    name: Board,
    count: Annotated[int, typer.Option("--sample", min=1, help="Runs, chosen at random.")] = 20,
    seed: Annotated[int, typer.Option(help="The seed of that choice.")] = 0,
    algorithms: Rows = None,
    dataset: Dataset = None,
    plugin: Plugins = None,
    data_dir: DataDir = None,
) -> None:
    """Train random frozen runs again, and say how many equal the board's.

    Runs without their data or package are left out. Exits with 1 if a run is off or has no result, and with
    2 if nothing can be trained.
    """
    from oodbench.board.rerun import rerun as train_again
    from oodbench.sweep.launch import LaunchOptions

    rows = [row for text in algorithms or () for row in from_commas(text)]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "rerun"
        options = LaunchOptions(out=out, plugins=tuple(plugin or ()), data_dir=data_dir)
        sentences, agree = train_again(find_board(name), count, seed, options, rows, dataset or ())
    for sentence in sentences:
        terminal().say(str(sentence))
    if not agree:
        raise SystemExit(1)


@app.command()
def freeze(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A results directory.")],
    name: Board,
    predictions: Annotated[
        bool,
        typer.Option("--predictions", help="Freeze the kept predictions of chosen steps, too."),
    ] = False,
    plugin: Plugins = None,
    data_dir: DataDir = None,
) -> None:
    """Add the rows of a results directory to a board, where they never change again.

    The folder of a new board has its sweep as protocol.yaml.
    """
    from oodbench.board.freeze import freeze as freeze_results
    from oodbench.registry import load_plugins

    load_plugins(plugin or [])
    board = Path(name) if "/" in name or Path(name).is_dir() else frozen_folder() / name
    added, there = freeze_results(results, board, data_dir, predictions)
    new = counted(len(added), "row")
    terminal().say(f"New in {name}: {new} of datasets; already there: {len(there)}.")


@app.command()
def validate(
    what: Annotated[
        str, typer.Argument(metavar="NAME_OR_RESULTS", help="A board, or a results directory.")
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The board of a results directory.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Say what is wrong with a board, or why results cannot be frozen.

    Exits with 1 if anything is wrong.
    """
    from oodbench.board.checks import wrong_board, wrong_results
    from oodbench.board.protocol import protocol_of
    from oodbench.results.directory import Directory

    if (Path(what) / "sweep.json").exists():
        results = Directory(Path(what))
        board = name or results.plan()["settings"].get("protocol")
        if board is None:
            raise UserError(f"{what} names no protocol: type the board after it")
        wrong = wrong_results(results.path, protocol_of(find_board(board)), data_dir)
    else:
        wrong = wrong_board(find_board(what))
        if not wrong and (coming := datasets_to_come(find_board(what))):
            terminal().say(f"{to_come(coming)}.")
    for sentence in wrong or [f"{what} is as it must be."]:
        terminal().say(sentence)
    if wrong:
        raise SystemExit(1)


@app.command()
def quickstart() -> None:
    """Train four methods again, in about a minute, and print them among the board's rows."""
    from oodbench.board.protocol import protocol_of, restricted
    from oodbench.board.rerun import BOARD, DATASET, ROWS, TRIALS, next_lines, quickstart_sheet
    from oodbench.report.html import write
    from oodbench.report.sources import beside_board
    from oodbench.report.tables import print_sheet
    from oodbench.sweep.launch import LaunchOptions, is_complete, launch

    protocol = protocol_of(find_board(BOARD))
    sweep = restricted(protocol, ROWS, TRIALS, datasets=[DATASET])
    out = Path("results/board-quickstart")
    options = LaunchOptions(out=out, table=False, failed=True, stale="retrain")
    counts = launch(sweep, options)
    frames = beside_board(BOARD, [out])
    print_sheet(quickstart_sheet(frames), more="")
    if not is_complete(counts):
        raise SystemExit(1)
    page = out / "report.html"
    write(frames, page)
    for line in next_lines(frames, page):
        terminal().say(line)


if __name__ == "__main__":
    app()
