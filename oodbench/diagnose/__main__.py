"""What a dataset leaves to gain, and how networks memorize: python -m oodbench.diagnose COMMAND."""

from oodbench.arithmetic import prepare

if __name__ == "__main__":
    prepare()  # before numpy and torch are loaded

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from oodbench.terminal import DataDir, Plugins, commands, terminal
from oodbench.yaml_values import assignments

app = commands(__doc__, no_args_is_help=True)


@app.callback()
def diagnose() -> None:
    """Say what a dataset leaves to gain, or how networks memorize."""


@app.command()
def dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")],
    data_dir: DataDir = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="OPTION=VALUE of the dataset.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A directory in which to keep the runs; by default none.")
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            help="Judge the dataset with this label in results or on a board, without training."
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Train ERM and references: how far is ERM from the ceiling, and is the dataset fit for a board?"""
    from oodbench.diagnose.admission import figures_of_results
    from oodbench.diagnose.head_room import head_room, show, show_checks
    from oodbench.registry import load_plugins
    from oodbench.report.sources import frames_of
    from oodbench.sweep.launchers import LaunchOptions

    load_plugins(plugin or [])
    if results:
        return show_checks(figures_of_results(frames_of(results), name), terminal())
    settings = assignments("--set", set_ or [])
    with tempfile.TemporaryDirectory() as scratch:
        options = LaunchOptions(
            out=out or Path(scratch), data_dir=data_dir, plugins=tuple(plugin or ())
        )
        show(head_room(name, settings, options), terminal())


@app.command()
def memorization(
    results: Annotated[list[str], typer.Argument(metavar="DIR...", help="Finished sweeps.")],
    figures: Annotated[
        Path | None, typer.Option(help="A folder for the figures; by default none.")
    ] = None,
) -> None:
    """How do networks memorize: critical samples, easy examples and loss sensitivity of a sweep's runs."""
    from oodbench.diagnose.memorization import show
    from oodbench.report.sources import frames_of

    show(frames_of(results), figures, terminal())


if __name__ == "__main__":
    app()
