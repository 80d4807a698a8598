"""Sweeps on the command line: plan, launch, status, cancel, clean."""

from oodbench.arithmetic import prepare

if __name__ == "__main__":
    prepare()  # before numpy and torch are loaded

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from oodbench.errors import UserError, some
from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.results.ended import ended
from oodbench.sweep.file import find_sweep, from_commas, name_of, read_sweep
from oodbench.sweep.launch import check_rules, is_complete
from oodbench.sweep.launch import launch as launch_sweep
from oodbench.sweep.launchers import LaunchOptions, Resources, states, submitters
from oodbench.sweep.plan import Plan, as_json, make_plan, show_plan
from oodbench.terminal import (
    DataDir,
    Plugins,
    Stale,
    StepsPerSecond,
    Threads,
    Workers,
    commands,
    confirmed,
    counted,
    duration,
    printable,
    terminal,
)
from oodbench.train.settings import TrainSettings
from oodbench.validation import several

app = commands(__doc__, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="SWEEP", help="A file, or a name in sweeps/.")]
Launched = Annotated[
    str, typer.Argument(metavar="SWEEP", help="As for launch, or a results directory.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as by resources.gpus=1."),
]
Launcher = Annotated[str, typer.Option(help="local, debug, slurm, or a plug-in's.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show a cluster's jobs, submit nothing.")]
Devices = Annotated[str, typer.Option(help="auto, cpu, or a list such as cuda:0,cuda:1.")]
Vectorize = Annotated[int, typer.Option(min=1, help="Most runs of one program.")]
KeepPredictions = Annotated[
    bool, typer.Option("--keep-predictions", help="Keep every example's logits at evaluations.")
]
KeepWeights = Annotated[
    str | None,
    typer.Option(
        metavar="RULES",
        help="Keep the weights that these rules choose, such as train_val,val_env,last.",
    ),
]
Failed = Annotated[bool, typer.Option("--failed", help="Train failed and broken runs again, too.")]
Retries = Annotated[
    int, typer.Option(min=0, help="How often a failed run is tried again in this launch.")
]
Format = Annotated[
    Literal["terminal", "json"], typer.Option("--format", help="terminal, or json for scripts.")
]
Observe = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="trackio, wandb, mlflow, tensorboard, or a plug-in's."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command()
def plan(
    sweep: Name = "quickstart",
    data_dir: DataDir = None,
    plugin: Plugins = None,
    set_: Settings = None,
    workers: Workers = None,
    steps_per_second: StepsPerSecond = None,
    format_: Format = "terminal",
) -> None:
    """Show a sweep's runs, its impossible cells, and about how long training takes.

    JSON has no time, which is measured.
    """
    parsed = read_sweep(find_sweep(sweep), set_ or (), plugin or ())
    load_plugins([*parsed.plugins, *(plugin or ())])
    made = make_plan(parsed, data_dir)
    check_rules(parsed.keep_weights, made.runs)
    if format_ == "json":
        typer.echo(as_json(made))
        return
    show_plan(made, terminal())
    if made.runs:
        show_time(made, data_dir, workers, steps_per_second)


def show_time(
    plan: Plan, data_dir: Path | None, workers: int | None, steps_per_second: float | None
) -> None:
    """Print how long the runs of a plan take, by a speed or else by a few measured steps of each row.

    Raises UserError for rows whose first steps fail.
    """
    if steps_per_second is not None:
        steps = sum(spec.steps for spec in plan.runs.values())
        seconds = steps / steps_per_second
        text = f"{steps:,} steps, {steps_per_second:g} a second: about {duration(seconds)}"
        if workers is not None:
            text += f", {duration(seconds / workers)} with {counted(workers, 'worker')}"
        return terminal().say(f"{text}; evaluations come on top of it.")
    from oodbench.sweep.estimate import TOTAL, forecast
    from oodbench.sweep.launchers.progress import progress
    from oodbench.sweep.launchers.slurm import SlurmResources, described, packed

    sweep, settings, console = plan.sweep, TrainSettings(data_dir=data_dir), terminal()
    with progress(console, 100, transient=True) as bar:
        task = bar.add_task("measuring", total=100)

        def measuring(row: str, share: float) -> None:
            text = f"measuring {printable(row)}"
            bar.update(task, description=text, completed=int(100 * share))

        expected = forecast([*plan.runs.values()], settings, measuring)
    if expected.unmeasured:
        console.say(
            f"These rows were not measured within {TOTAL:g} s, and are taken to be like the others: "
            f"{some(expected.unmeasured, 6)}. --steps-per-second X takes your GPU's speed."
        )
    for reason in dict.fromkeys(expected.alone.values()):
        rows = [row for row, why in expected.alone.items() if why == reason]
        console.say(f"Trained one run at a time ({reason}): {some(rows, 6)}.")
    if expected.failing:
        failing = [
            f"{row} fails at its first steps: {why}" for row, why in expected.failing.items()
        ]
        raise UserError(several(f"sweep '{sweep.name}'", failing))
    count = workers or os.cpu_count() or 1
    seconds = sum(map(expected.seconds_of, plan.runs.values()))
    console.say(
        f"About {duration(seconds)} of training and evaluation on one core of this machine, "
        f"{duration(seconds / count)} with {counted(count, 'worker')}."
    )
    if shutil.which("sbatch") or sweep.resources.keys() - Resources.model_fields:
        asked = SlurmResources.of(sweep.resources)
        console.say(described(packed(plan.runs, asked, settings, expected), asked))


@app.command()
def launch(
    sweep: Name = "quickstart",
    out: Annotated[
        Path | None, typer.Option(help="The results directory; results/NAME by default.")
    ] = None,
    launcher: Launcher = "local",
    data_dir: DataDir = None,
    plugin: Plugins = None,
    set_: Settings = None,
    dry_run: DryRun = False,
    keep_predictions: KeepPredictions = False,
    keep_weights: KeepWeights = None,
    yes: Yes = False,
    failed: Failed = False,
    retries: Retries = 0,
    stale: Stale = None,
    workers: Workers = None,
    devices: Devices = "auto",
    threads: Threads = 1,
    vectorize: Vectorize = TrainSettings.vectorize,
    observe: Observe = None,
) -> None:
    """Train the runs of a sweep that have not ended yet, then print its leaderboard."""
    parsed = read_sweep(find_sweep(sweep), set_ or (), plugin or ())
    options = LaunchOptions(
        out=out or Path("results") / parsed.name,
        launcher=launcher,
        data_dir=data_dir,
        plugins=tuple(plugin or ()),
        dry_run=dry_run,
        keep_predictions=keep_predictions,
        keep_weights=from_commas(keep_weights) if keep_weights else (),
        confirm=not yes,
        failed=failed,
        retries=retries,
        stale=stale or "",
        workers=workers,
        devices=devices,
        threads=threads,
        vectorize=vectorize,
        observers=tuple(dict.fromkeys(observe or ())),
    )
    if not is_complete(launch_sweep(parsed, options)):
        raise SystemExit(1)


@app.command()
def status(
    sweep: Launched = "quickstart",
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until nothing is left to do.")
    ] = False,
    plugin: Plugins = None,
    format_: Format = "terminal",
) -> None:
    """Count a sweep's runs by state, as known from the disk and Slurm."""
    from oodbench.sweep import status as view

    load_plugins(plugin or ())
    results = _results(sweep)
    if format_ == "json":
        typer.echo(view.as_json(results))
    elif watch:
        view.watch(results, terminal())
    else:
        console = terminal()
        console.print(view.render(results, states(results), console), soft_wrap=True)


@app.command()
def cancel(sweep: Launched = "quickstart", plugin: Plugins = None) -> None:
    """Cancel this sweep's jobs on the cluster, and no others; the runs can be launched again."""
    load_plugins(plugin or ())
    results = _results(sweep)
    count = sum(each.cancel(results) for each in submitters(results, results.plan()["settings"]))
    terminal().say(f"{counted(count, 'job')} cancelled.")


@app.command()
def clean(
    sweep: Launched = "quickstart",
    weights: Annotated[bool, typer.Option("--weights", help="All kept weights, too.")] = False,
    plugin: Plugins = None,
    yes: Yes = False,
) -> None:
    """Delete checkpoints of ended runs, runs outside the sweep, and predictions that no rule chose."""
    from oodbench.selection.judge import unchosen_predictions

    load_plugins(plugin or ())
    results = _results(sweep)
    planned, tables = results.specs(), ended(results.path)
    complete = [i for i in planned if results.run(i).state().complete]
    checkpoints = [file for i in complete if (file := results.run(i).checkpoint).exists()]
    predictions = unchosen_predictions(results)
    of_runs = results.kept_weights(complete).values() if weights else ()
    kept = [file for of_run in of_runs for file in of_run.values()]
    folders = [path for name in ("runs", "kept") for path in (results.path / name).glob("*")]
    strangers = [path for path in folders if path.name not in planned]
    moved = tables.states.keys() - planned.keys()
    counts = (
        (len(checkpoints), "checkpoint", "of ended runs"),
        (len(predictions), "file", "of predictions that no rule chose"),
        (len(kept), "file", "of kept weights"),
        (len({*(path.name for path in strangers), *moved}), "run", "outside the sweep"),
    )
    texts = [f"{counted(n, noun)} {rest}" for n, noun, rest in counts if n]
    if not texts:
        terminal().say(f"There is nothing to delete in {results.path}.")
        return
    paths = [*checkpoints, *predictions, *kept, *strangers]
    size = sum(map(_size, paths)) / 2**20
    terminal().say(f"To be deleted: {', '.join(texts)}; {size:.1f} MB.")
    if not (yes or confirmed("Delete them?")):
        raise typer.Abort
    tables.forget(moved)
    for path in paths:
        shutil.rmtree(path) if _is_folder(path) else path.unlink()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _size(path: Path) -> int:
    files = path.rglob("*") if _is_folder(path) else [path]
    return sum(file.lstat().st_size for file in files if not _is_folder(file))


@app.command("compact")
def compact_(sweep: Launched = "quickstart") -> None:
    """Move ended runs from their folders into two tables, as every launch does at its end."""
    from oodbench.results.directory import compact

    results = _results(sweep)
    moved = compact(results)
    terminal().say(f"{counted(moved, 'run')} moved into {results.path / 'ended'}.")


@app.command()
def schema(plugin: Plugins = None) -> None:
    """Print the JSON Schema of sweep files, by which editors complete and check files."""
    from oodbench.sweep import schema as module

    load_plugins(plugin or ())
    typer.echo(json.dumps(module.schema(), indent=1))


def _results(sweep: str) -> Directory:
    if (Path(sweep) / "sweep.json").is_file():
        return Directory(Path(sweep))
    return Directory(Path("results") / name_of(find_sweep(sweep)))


if __name__ == "__main__":
    app()
