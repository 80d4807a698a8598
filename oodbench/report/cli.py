"""Leaderboards on the command line: python -m oodbench.report table DIR. Imports no torch."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from oodbench.errors import reports_mistakes, unknown
from oodbench.report.formats import FORMATS
from oodbench.report.printing import print_sheet, print_table
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.selection import RULES
from oodbench.terminal import commands

app = commands(__doc__, no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The results directory.")]
Baseline = Annotated[str, typer.Option(help="The row that others are compared with.")]
TABLES = ("ours", "domainbed")
Selection = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(RULES)}; by default what the sweep names, else val_env where it holds "
        "validation environments out, else train_val."
    ),
]
Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")]
Metric = Annotated[str | None, typer.Option(help="Shown instead of the datasets' own.")]


@app.callback()
def _commands() -> None:
    """Leaderboards of a results directory."""


@app.command()
@reports_mistakes
def table(
    directory: Directory,
    selection: Selection = None,
    format_: Format = "terminal",
    metric: Metric = None,
    rules: Annotated[str, typer.Option(help=f"{', '.join(TABLES)}: whose tables.")] = "ours",
) -> None:
    """Print the leaderboard: test environments, their average, mean ± standard error, counts."""
    if rules not in TABLES:
        raise unknown("rules", rules, TABLES)
    if rules == "domainbed":
        from oodbench.report.domainbed_tables import tables

        print_sheet(tables(load_frames(Results(directory))), format_)
    else:
        print_table(Results(directory), selection, format_, metric)


@app.command()
@reports_mistakes
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The results directory.")],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
) -> None:
    """Write all records, one evaluation a row, as a Parquet file; `oodbench.load` has the columns."""
    from oodbench.results.export import write_parquet

    print(f"{write_parquet(load_frames(Results(directory)), out)} rows are in {out}.")


@app.command()
@reports_mistakes
def import_domainbed(
    folder: Annotated[Path, typer.Argument(metavar="SWEEP_DIR", help="DomainBed's output folder.")],
    out: Annotated[Path, typer.Option(help="The results directory to write.")],
) -> None:
    """Turn results of DomainBed into a results directory."""
    from oodbench.results.domainbed import import_sweep

    print(f"{import_sweep(folder, out)} runs of {folder} are in {out}.")


@app.command()
@reports_mistakes
def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Results directories.")
    ],
    baseline: Baseline = "ERM",
    selection: Selection = None,
    format_: Format = "terminal",
    metric: Metric = None,
    allow_mixed: Annotated[bool, typer.Option(help="Although protocol or code differ.")] = False,
) -> None:
    """Compare sweeps, also other people's, with a baseline: gains, intervals, ranks, noise."""
    from oodbench.report.comparison import comparison
    from oodbench.results.join import joined

    frames = joined(directories, allow_mixed)
    print_sheet(comparison(frames, baseline, selection, metric), format_)


@app.command()
@reports_mistakes
def html(
    directory: Directory,
    out: Annotated[Path | None, typer.Option(help="The file; DIR/report.html by default.")] = None,
    baseline: Baseline = "ERM",
) -> None:
    """Write the report as one HTML file that needs no network."""
    from oodbench.report.html.render import write

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
    from oodbench.report.html.server import Server

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
    selection: Selection = None,
) -> None:
    """List the runs, draws and steps behind a cell, and which were chosen."""
    from oodbench.report import why as room

    frames = load_frames(Results(directory))
    cell = room.why(frames, dataset, algorithm, test_env, selection)
    print(room.text(cell), end="")
