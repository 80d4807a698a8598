"""The average of several runs that a sweep has trained."""

from oodbench.arithmetic import prepare

if __name__ == "__main__":
    prepare()  # before numpy and torch are loaded

from pathlib import Path
from typing import Annotated

import typer

from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.terminal import DataDir, Plugins, Threads, commands, terminal
from oodbench.train.settings import TrainSettings

app = commands(__doc__, no_args_is_help=True)


@app.callback()
def train() -> None:
    """Work on the runs that a sweep has trained."""


@app.command("average")
def average(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="The results of a sweep.")],
    rule: Annotated[
        str | None,
        typer.Option(
            help="The selection rule whose kept weights are averaged; train_val by default."
        ),
    ] = None,
    members: Annotated[
        str, typer.Option(help="uniform (all draws), greedy (by the rule's score), or both.")
    ] = "uniform,greedy",
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="cpu, or a device such as cuda:0.")] = "cpu",
    threads: Threads = 1,
    plugin: Plugins = None,
) -> None:
    """Average the weights of the draws of each row and trial of a sweep (DiWA), and record the scores.

    The sweep must be launched with --keep-weights RULE. Only draws with the same initial weights are
    averaged. The averages are further rows in RESULTS, such as `ERM + DiWA`, and their weights are kept,
    too. The same command again averages only new runs.
    """
    from oodbench.train.diwa import average_runs
    from oodbench.train.process import clean_process

    directory, console = Directory(results), terminal()
    stored = directory.plan()["settings"]
    plugins = tuple(dict.fromkeys([*stored.get("plugins", ()), *(plugin or ())]))
    load_plugins(plugins)
    known = data_dir or stored.get("data_dir")
    settings = TrainSettings(
        data_dir=Path(known) if known else None, device=device, threads=threads, plugins=plugins
    )
    with clean_process(threads):
        made = average_runs(directory, rule, members.split(","), settings, console.say)
    console.say(f"{len(made)} averages; `python -m oodbench.report table {results}` shows them.")


if __name__ == "__main__":
    app()
