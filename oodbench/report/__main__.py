"""Leaderboards on the command line: python -m oodbench.report table DIR."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oodbench.registry import load_plugins
from oodbench.report.tables import FORMATS, NOTES, print_sheet
from oodbench.results.boards import board_among
from oodbench.terminal import commands, counted, terminal

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Results directories, shown as one, or a board (its name or folder) and directories.",
    ),
]
Baseline = Annotated[str, typer.Option(help="The row that others are compared with.")]
Selection = Annotated[
    str | None,
    typer.Option(
        "--rule",
        help="The selection rule: train_val, val_env, leave_one_out, worst_inferred, oracle or a "
        "plug-in's, or RULE:METRIC to judge by another metric; by default that of a board's headline or "
        "what the sweep names, else val_env where it holds validation environments out, else train_val.",
    ),
]
Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")]
Metric = Annotated[
    str | None,
    typer.Option(
        help="Shown instead of the datasets' own: a recorded metric, such as loss, brier or "
        "balanced_accuracy, or one computed from kept predictions, such as macro_f1 or auroc."
    ),
]
Also = Annotated[
    list[str] | None,
    typer.Option(help="A column of a further metric, such as calibration_error; several times."),
]
Datasets = Annotated[
    list[str] | None,
    typer.Option("--dataset", help="Only this dataset, by its name in the table; several times."),
]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "--algorithms",
        help="Only these rows and the baseline, if any; several times, or with commas.",
    ),
]
Notes = Annotated[bool, typer.Option("--notes", help="Print the notes below tables in full.")]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="A module of metrics or selection rules. Reading runs nothing unasked: a rule or metric of a "
        "sweep's own plug-in needs the option, too.",
    ),
]
AllowMixed = Annotated[
    bool, typer.Option("--allow-mixed", help="Accept directories that differ in protocol or code.")
]

app = commands("Leaderboards, figures and pages of results.", no_args_is_help=True)

if TYPE_CHECKING:
    from oodbench.results.tables import Tables

ALL = "`--notes` prints all rows, and these lines in full."
"""The line below the short form of a board's tables."""


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

    `--rule domainbed` prints DomainBed's own tables, by its three rules.
    """
    from oodbench.report.comparison import table as table_of

    load_plugins(plugin or [])
    board, _ = board_among(sources)
    short = board is not None and not (notes or dataset or format_ != "terminal")
    shown = table_of(
        *sources,
        rule=selection,
        metric=metric,
        also=also or (),
        datasets=dataset or (),
        rows=algorithms or (),
        allow_mixed=allow_mixed,
        short=short,
    )
    print_sheet(shown, format_, notes, ALL if short else NOTES)


@app.command()
def import_domainbed(
    folder: Annotated[Path, typer.Argument(metavar="SWEEP_DIR", help="DomainBed's output folder.")],
    out: Annotated[Path, typer.Option(help="The results directory to write.")],
) -> None:
    """Turn results of DomainBed into a results directory."""
    from oodbench.results.domainbed import import_sweep

    count, left_out = import_sweep(folder, out)
    for sentence in left_out:
        terminal(stderr=True).say(f"left out: {sentence}")
    terminal().say(f"{out} holds {counted(count, 'run')} of {folder}.")


@app.command()
def compare(
    sources: Sources,
    baseline: Baseline = "ERM",
    selection: Selection = None,
    format_: Format = "terminal",
    metric: Metric = None,
    dataset: Datasets = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Compare sweeps, also other people's, with a baseline: gains, intervals, ranks."""
    from oodbench.report.cells import with_prediction_metrics
    from oodbench.report.comparison import comparison

    tables = _read(plugin, sources, dataset, allow_mixed=allow_mixed)
    tables = with_prediction_metrics(tables, selection, [metric])
    more = "`--format markdown` prints these lines in full."
    print_sheet(comparison(tables, baseline, selection, metric), format_, more=more)


@app.command()
def hparams(
    sources: Sources,
    selection: Selection = None,
    format_: Format = "terminal",
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Print the hyperparameters that draws tried and that were chosen: an appendix's table."""
    from oodbench.report.why import hparams_sheet

    tables = _read(plugin, sources, allow_mixed=allow_mixed)
    print_sheet(hparams_sheet(tables, selection), format_)


@app.command()
def bibtex(sources: Sources) -> None:
    """Print the BibTeX entries of all methods, datasets and networks of the results."""
    from oodbench.report.bibtex import bibtex as entries_of

    entries, unknown_names = entries_of(_read(None, sources, allow_mixed=True))
    print("\n\n".join(entries))
    if unknown_names:
        terminal(stderr=True).say(f"There is no entry for {', '.join(unknown_names)}.")


@app.command()
def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="curves, scatter or gains.")],
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

    tables = _read(plugin, sources, dataset, algorithms, baseline, allow_mixed)
    save(plot(kind, tables, selection, baseline), out)
    for text in (*tables.notes, out):
        terminal().say(str(text))


@app.command()
def html(
    sources: Sources,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; report.html in the first directory, or board.html."),
    ] = None,
    dataset: Datasets = None,
    plugin: Plugins = None,
) -> None:
    """Write the report as one HTML file that needs no network."""
    from oodbench.report.html import write

    tables = _read(plugin, sources, dataset)
    directories = board_among(sources)[1]
    path = out or (directories[0] / "report.html" if directories else Path("board.html"))
    write(tables, path)
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
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """List the runs, draws and steps behind a cell, and which were chosen."""
    from oodbench.report import why as room

    tables = _read(plugin, sources, allow_mixed=allow_mixed)
    room.show(room.why(tables, dataset, algorithm, test_env, selection), terminal())
    for note in tables.notes:
        terminal().say(str(note))


def _read(
    plugins: Sequence[str] | None,
    sources: Sequence[str],
    datasets: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    baseline: str | None = None,
    allow_mixed: bool = False,
) -> "Tables":
    from oodbench.report.sources import frames_of  # brings pandas, which takes half a second

    load_plugins(plugins or [])
    return frames_of(sources, datasets or (), rows or (), baseline, allow_mixed)


if __name__ == "__main__":
    app()
