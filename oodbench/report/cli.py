"""Leaderboards on the command line: python -m oodbench.report table DIR."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from oodbench.errors import unknown
from oodbench.registry import load_plugins
from oodbench.report.formats import FORMATS, print_sheet
from oodbench.report.prediction_metrics import with_prediction_metric
from oodbench.report.sheet import print_leaderboard
from oodbench.results.frames import Frames, only_dataset
from oodbench.results.join import joined
from oodbench.terminal import commands, exit_on_user_error, terminal

app = commands(
    "Leaderboards, figures and pages of results.",
    no_args_is_help=True,
    renamed={
        "watch": "`report html` writes the page; type it again while the sweep runs",
        "table --board": "type `oodbench board show NAME DIR`",
        "compare --board": "type `oodbench board compare NAME DIR`",
        "html --board": "type `oodbench board html NAME DIR`",
        "figure --columns": "a figure is two columns wide where it has several datasets",
    },
)

Directories = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Results directories, shown as one.")
]
Baseline = Annotated[str, typer.Option(help="The row that others are compared with.")]
DOMAINBED = "domainbed"
Selection = Annotated[
    str | None,
    typer.Option(
        "--rule",
        help="The selection rule: train_val, val_env, leave_one_out, oracle or a plug-in's, or "
        "RULE:METRIC to judge by another metric; by default what the sweep names, else val_env where "
        "it holds validation environments out, else train_val.",
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
Dataset = Annotated[
    str | None, typer.Option(help="Show this dataset alone, by its name in the table.")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="A module of metrics or selection rules; the sweep's own plug-ins need no option.",
    ),
]
AllowMixed = Annotated[
    bool, typer.Option("--allow-mixed", help="Accept directories that differ in protocol or code.")
]


@app.command()
@exit_on_user_error
def table(
    directories: Directories,
    selection: Selection = None,
    format_: Format = "terminal",
    metric: Metric = None,
    dataset: Dataset = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Print the leaderboard: test environments, mean ± standard error, counts of trials.

    `--rule domainbed` prints DomainBed's own tables, by its three rules, and ours beside them.
    """
    load_plugins(plugin or [])
    frames = _frames(directories, allow_mixed, dataset)
    if selection == DOMAINBED:
        from oodbench.report.domainbed_tables import tables

        print_sheet(tables(frames), format_)
    else:
        print_leaderboard(frames, selection, format_, metric)


@app.command()
@exit_on_user_error
def export(
    directories: Directories,
    out: Annotated[Path, typer.Option(help="The file, or for tensorboard the folder, to write.")],
    format_: Annotated[
        str, typer.Option("--format", help="parquet, csv or tensorboard (event files).")
    ] = "parquet",
    allow_mixed: AllowMixed = False,
) -> None:
    """Write all records, one evaluation a row; `oodbench.load` has the columns."""
    from oodbench.results.export import WRITERS

    if format_ not in WRITERS:
        raise unknown("format", format_, WRITERS)
    frames = joined(directories, allow_mixed)
    count = WRITERS[format_](frames, out)
    _say(frames.notes)
    terminal().say(f"{count} rows are in {out}.")


@app.command()
@exit_on_user_error
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
    console.say(f"{merged.runs} runs of {len(directories)} directories are in {out}.")
    if len(merged.codes) > 1:
        console.say(f"They were trained by different code: {'; '.join(merged.codes)}.")


@app.command()
@exit_on_user_error
def import_domainbed(
    folder: Annotated[Path, typer.Argument(metavar="SWEEP_DIR", help="DomainBed's output folder.")],
    out: Annotated[Path, typer.Option(help="The results directory to write.")],
) -> None:
    """Turn results of DomainBed into a results directory."""
    from oodbench.results.domainbed import import_sweep

    terminal().say(f"{import_sweep(folder, out)} runs of {folder} are in {out}.")


@app.command()
@exit_on_user_error
def compare(
    directories: Directories,
    baseline: Baseline = "ERM",
    selection: Selection = None,
    format_: Format = "terminal",
    metric: Metric = None,
    dataset: Dataset = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Compare sweeps, also other people's, with a baseline: gains, intervals, ranks, noise."""
    from oodbench.report.comparison import comparison

    load_plugins(plugin or [])
    frames = with_prediction_metric(_frames(directories, allow_mixed, dataset), [selection], metric)
    print_sheet(comparison(frames, baseline, selection, metric), format_)


@app.command()
@exit_on_user_error
def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="curves, scatter, ranks or gains.")],
    directories: Directories,
    out: Annotated[Path, typer.Option(help="The file: .pdf, .svg or .png.")],
    baseline: Baseline = "ERM",
    selection: Selection = None,
    dataset: Dataset = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Plot a figure for a paper: a vector with embedded fonts, two columns wide for several datasets."""
    from oodbench.report.figures import plot, save

    load_plugins(plugin or [])
    frames = _frames(directories, allow_mixed, dataset)
    save(plot(kind, frames, selection, baseline), out)
    _say(frames.notes)
    terminal().say(str(out))


@app.command()
@exit_on_user_error
def html(
    directories: Directories,
    out: Annotated[
        Path | None, typer.Option(help="The file; report.html in the first DIR by default.")
    ] = None,
    baseline: Baseline = "ERM",
    metric: Metric = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """Write the report as one HTML file that needs no network."""
    from oodbench.report.html import write

    load_plugins(plugin or [])
    path = out or directories[0] / "report.html"
    write(directories, path, baseline, allow_mixed, metric)
    terminal().say(f"{path}: {path.stat().st_size / 2**20:.1f} MB")


@app.command()
@exit_on_user_error
def why(
    directories: Directories,
    dataset: Annotated[str | None, typer.Option(help="As the table names it.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="The row of the table.")] = None,
    test_env: Annotated[str | None, typer.Option(help="Several are joined by +.")] = None,
    selection: Selection = None,
    metric: Metric = None,
    allow_mixed: AllowMixed = False,
    plugin: Plugins = None,
) -> None:
    """List the runs, draws and steps behind a cell, and which were chosen."""
    from oodbench.report import why as room

    load_plugins(plugin or [])
    frames = with_prediction_metric(joined(directories, allow_mixed), [selection], metric)
    cell = room.why(frames, dataset, algorithm, test_env, selection, metric)
    room.show(cell, terminal())
    _say(frames.notes)


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        terminal().say(note)


def _frames(directories: Sequence[Path], allow_mixed: bool, dataset: str | None) -> Frames:
    frames = joined(directories, allow_mixed)
    return frames if dataset is None else only_dataset(frames, dataset)
