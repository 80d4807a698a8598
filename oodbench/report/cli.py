"""Leaderboards on the command line: python -m oodbench.report table DIR."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from oodbench.errors import unknown
from oodbench.registry import load_plugins
from oodbench.report.formats import NOTES, print_sheet
from oodbench.report.options import (
    AllowMixed,
    Also,
    Baseline,
    Datasets,
    Format,
    Metric,
    Notes,
    Plugins,
    Rows,
    Selection,
    Sources,
)
from oodbench.report.sources import board_among, frames_of
from oodbench.results.boards import find_board
from oodbench.terminal import commands, counted, terminal

app = commands(
    "Leaderboards, figures and pages of results.",
    no_args_is_help=True,
    renamed={
        "watch": "`report html` writes the page; type it again while the sweep runs",
        "table --board": "type `report table BOARD DIR`",
        "compare --board": "type `report compare BOARD DIR`",
        "html --board": "type `report html BOARD DIR`",
        "figure --board": "type `report figure KIND BOARD DIR`",
        "ensemble": "average the probabilities of the models that `oodbench.load_model` gives",
        "figure --columns": "a figure is two columns wide where it has several datasets",
    },
)

DOMAINBED = "domainbed"
ALL = "`--notes` prints all rows, and these lines in full."
"""The line below what of a board fits one screen."""


@app.command()
def table(
    sources: Sources,
    selection: Selection = None,
    format_: Format = "terminal",
    metric: Metric = None,
    also: Also = None,
    dataset: Datasets = None,
    algorithms: Rows = None,
    notes: Notes = False,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Print the leaderboard: test environments, mean ± standard error, counts of trials.

    `--rule domainbed` prints DomainBed's own tables, by its three rules, and ours beside them.
    """
    load_plugins(plugin or [])
    board, directories = board_among(sources)
    short = board is not None and not (notes or dataset or format_ != "terminal")
    if board and not directories and not (dataset or algorithms or selection or metric or also):
        from oodbench.report.short import short_sheet
        from oodbench.report.summary import whole_board

        whole = whole_board(find_board(board))
        print_sheet(short_sheet(whole) if short else whole, format_, notes, ALL if short else NOTES)
        return
    baseline = "ERM" if board and directories else None  # with which rows trained here are compared
    frames = frames_of(sources, dataset or (), algorithms or (), baseline, allow_mixed)
    if selection == DOMAINBED:
        from oodbench.report.domainbed_tables import tables

        print_sheet(tables(frames), format_, notes)
    elif board:
        from oodbench.report.board_tables import board_sheet

        shown = board_sheet(frames, selection, metric, also or (), short)
        print_sheet(shown, format_, notes, ALL if short else NOTES)
    else:
        from oodbench.report.sheet import leaderboard_sheet

        print_sheet(leaderboard_sheet(frames, selection, metric, also or ()), format_, notes)


@app.command()
def export(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    format_: Annotated[str, typer.Option("--format", help="parquet or csv.")] = "parquet",
    dataset: Datasets = None,
    algorithms: Rows = None,
    allow_mixed: AllowMixed = False,
) -> None:
    """Write all records, one evaluation a row; `oodbench.load` has the columns."""
    from oodbench.results.export import FORMATS, write

    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    frames = frames_of(sources, dataset or (), algorithms or (), None, allow_mixed)
    count = write(frames, out, format_)
    _say(frames.notes)
    terminal().say(f"{count} rows are in {out}.")


@app.command()
def merge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Results directories of one sweep.")
    ],
    out: Annotated[Path, typer.Option(help="The results directory to write.")],
) -> None:
    """Join the results directories of one sweep, run on several machines, as a new one."""
    from oodbench.results.join import merge as merge_results

    merged = merge_results(directories, out)
    console = terminal()
    console.say(f"{out} holds {counted(merged.runs, 'run')} of {len(directories)} directories.")
    if len(merged.codes) > 1:
        console.say(f"They were trained by different code: {'; '.join(merged.codes)}.")


@app.command()
def import_domainbed(
    folder: Annotated[Path, typer.Argument(metavar="SWEEP_DIR", help="DomainBed's output folder.")],
    out: Annotated[Path, typer.Option(help="The results directory to write.")],
) -> None:
    """Turn results of DomainBed into a results directory."""
    from oodbench.results.domainbed import import_sweep

    imported = import_sweep(folder, out)
    for sentence in imported.left_out:
        terminal(stderr=True).say(f"left out: {sentence}")
    terminal().say(f"{out} holds {counted(imported.runs, 'run')} of {folder}.")


@app.command()
def compare(
    sources: Sources,
    baseline: Baseline = "ERM",
    selection: Selection = None,
    format_: Format = "terminal",
    metric: Metric = None,
    dataset: Datasets = None,
    algorithms: Rows = None,
    notes: Notes = False,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Compare sweeps, also other people's, with a baseline: gains, intervals, ranks, noise."""
    from oodbench.report.comparison import comparison
    from oodbench.report.prediction_metrics import with_prediction_metric

    load_plugins(plugin or [])
    frames = frames_of(sources, dataset or (), algorithms or (), baseline, allow_mixed)
    frames = with_prediction_metric(frames, [selection], metric)
    print_sheet(comparison(frames, baseline, selection, metric), format_, notes)


@app.command()
def hparams(
    sources: Sources,
    selection: Selection = None,
    format_: Format = "terminal",
    dataset: Datasets = None,
    algorithms: Rows = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Print the hyperparameters that draws tried and that were chosen: an appendix's table."""
    from oodbench.report.hparams import hparams_sheet

    load_plugins(plugin or [])
    frames = frames_of(sources, dataset or (), algorithms or (), None, allow_mixed)
    print_sheet(hparams_sheet(frames, selection), format_)


@app.command()
def bibtex(sources: Sources, dataset: Datasets = None, algorithms: Rows = None) -> None:
    """Print the BibTeX entries of all methods, datasets and networks of the results."""
    from oodbench.report import bibtex as room

    frames = frames_of(sources, dataset or (), algorithms or (), allow_mixed=True)
    entries, unknown_names = room.bibtex(frames)
    print("\n\n".join(entries))
    if unknown_names:
        terminal(stderr=True).say(f"There is no entry for {', '.join(unknown_names)}.")


@app.command()
def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="curves, scatter, ranks or gains.")],
    sources: Sources,
    out: Annotated[Path, typer.Option(help="The file: .pdf, .svg or .png.")],
    baseline: Baseline = "ERM",
    selection: Selection = None,
    dataset: Datasets = None,
    algorithms: Rows = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Plot a figure for a paper: a vector with embedded fonts, two columns wide for several datasets."""
    from oodbench.report.figures import plot, save

    load_plugins(plugin or [])
    frames = frames_of(sources, dataset or (), algorithms or (), baseline, allow_mixed)
    save(plot(kind, frames, selection, baseline), out)
    _say(frames.notes)
    terminal().say(str(out))


@app.command()
def html(
    sources: Sources,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; report.html in the first directory, or board.html."),
    ] = None,
    baseline: Baseline = "ERM",
    metric: Metric = None,
    dataset: Datasets = None,
    algorithms: Rows = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Write the report as one HTML file that needs no network."""
    from oodbench.report.html import write

    load_plugins(plugin or [])
    directories = board_among(sources)[1]
    path = out or (directories[0] / "report.html" if directories else Path("board.html"))
    frames = frames_of(sources, dataset or (), algorithms or (), baseline, allow_mixed)
    write(frames, path, baseline, metric)
    terminal().say(f"{path}: {path.stat().st_size / 2**20:.1f} MB")


@app.command()
def why(
    sources: Sources,
    dataset: Annotated[str | None, typer.Option(help="As the table names it.")] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "--algorithms", help="The row of the table.")
    ] = None,
    test_env: Annotated[str | None, typer.Option(help="Several are joined by +.")] = None,
    selection: Selection = None,
    metric: Metric = None,
    hparams: Annotated[
        bool, typer.Option("--hparams", help="Print the runs' hyperparameters, too.")
    ] = False,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """List the runs, draws and steps behind a cell, and which were chosen."""
    from oodbench.report import why as room
    from oodbench.report.prediction_metrics import with_prediction_metric

    load_plugins(plugin or [])
    frames = with_prediction_metric(
        frames_of(sources, allow_mixed=allow_mixed), [selection], metric
    )
    cell = room.why(frames, dataset, algorithm, test_env, selection, metric)
    room.show(cell, terminal(), hparams)
    _say(frames.notes)


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        terminal().say(note)
