"""Sweeps on the command line: plan, launch, status, cancel, retry, clean."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from oodbench.report.numbers import duration
from oodbench.results.directory import Results
from oodbench.sweep.file import Sweep, find_sweep, from_commas, read_sweep
from oodbench.sweep.flags import (
    BatchRuns,
    Flags,
    Vectorize,
    Workers,
    training_flags,
    vectorize_at_most,
)
from oodbench.sweep.plan import Plan, make_plan
from oodbench.sweep.status import show_plan
from oodbench.sweep.weights import weights_files
from oodbench.terminal import commands, confirmed, exit_on_user_error, terminal
from oodbench.train.settings import TrainSettings, large_bundles

app = commands(__doc__, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="SWEEP", help="A file, or a name in sweeps/.")]
Out = Annotated[Path | None, typer.Option(help="The results directory; results/NAME by default.")]
DataDir = Annotated[Path | None, typer.Option(help="Where datasets that need files find them.")]
Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", metavar="MODULE", help="Imported first.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Over the file's.")
]
Launcher = Annotated[str, typer.Option(help="local, debug or slurm.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Slurm: show the jobs, submit nothing.")]
KeepPredictions = Annotated[
    bool, typer.Option("--keep-predictions", help="Keep every example's logits at evaluations.")
]
KeepWeights = Annotated[
    str | None,
    typer.Option(
        metavar="RULES",
        help="Keep the weights that these rules would choose, such as train_val,val_env,last.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing.")]


@app.command()
@exit_on_user_error
def plan(
    sweep: Name = "quickstart",
    data_dir: DataDir = None,
    plugin: Plugins = None,
    set_: Settings = None,
    workers: Workers = None,
    vectorize: Vectorize = "auto",
    batch_runs: BatchRuns = None,
) -> None:
    """Say how many runs of what a sweep holds, what is impossible, and about how long it takes."""
    from rich.progress import Progress

    from oodbench.sweep.estimate import TOTAL, forecast

    console = terminal()
    made = _plan(read_sweep(find_sweep(sweep), set_ or (), plugin or ()), plugin, data_dir)
    show_plan(made, console)
    if not made.runs:
        return
    # measured on the CPU, which has no TF32
    specs = [
        replace(s, precision="float32") if s.precision == "tf32" else s for s in made.runs.values()
    ]
    settings = TrainSettings(
        data_dir=data_dir,
        vectorize=vectorize_at_most(batch_runs or vectorize),
        large_bundles=large_bundles(specs),
    )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=1.0)
        expected = forecast(
            specs,
            settings,
            lambda row, share: bar.update(task, description=f"measuring {row}", completed=share),
        )
    if expected.unmeasured:
        rows_left = ", ".join(expected.unmeasured)
        console.say(
            f"Not measured within {TOTAL:.0f} s, and taken to be like the others: {rows_left}"
        )
    reasons: dict[str, list[str]] = {}
    for row, reason in expected.alone.items():
        reasons.setdefault(reason, []).append(row)
    for reason, rows in reasons.items():
        console.say(f"one at a time ({reason}): {', '.join(rows)}")
    count = workers or os.cpu_count() or 1
    console.say(
        f"About {duration(expected.seconds)} of training and evaluation on one core of this machine, "
        f"{duration(expected.seconds / count)} with {count} workers."
    )


@app.command()
@exit_on_user_error
@training_flags
def launch(
    how: Flags,
    sweep: Name = "quickstart",
    out: Out = None,
    launcher: Launcher = "local",
    data_dir: DataDir = None,
    plugin: Plugins = None,
    set_: Settings = None,
    dry_run: DryRun = False,
    keep_predictions: KeepPredictions = False,
    keep_weights: KeepWeights = None,
    yes: Yes = False,
) -> None:
    """Train the runs of a sweep that have not ended yet, then print its leaderboard."""
    from oodbench.sweep.launch import LaunchOptions, is_complete
    from oodbench.sweep.launch import launch as launch_sweep

    options = LaunchOptions(
        **how,
        out=out,
        launcher=launcher,
        data_dir=data_dir,
        plugins=tuple(plugin or ()),
        dry_run=dry_run,
        keep_predictions=keep_predictions,
        keep_weights=from_commas(keep_weights) if keep_weights else None,
        confirm=not yes,
    )
    parsed = read_sweep(find_sweep(sweep), set_ or (), plugin or ())
    if not is_complete(launch_sweep(parsed, options, terminal())):
        raise SystemExit(1)


@app.command()
@exit_on_user_error
@training_flags
def retry(
    how: Flags,
    sweep: Name = "quickstart",
    out: Out = None,
    launcher: Annotated[str | None, typer.Option(help="The last launch's by default.")] = None,
) -> None:
    """Train the failed and lost runs of a sweep again, from their last checkpoints."""
    from oodbench.sweep.launch import LaunchOptions, is_complete
    from oodbench.sweep.launch import retry as retry_runs

    results = _results(sweep, out)
    options = LaunchOptions(
        **how,
        launcher=launcher or results.plan()["settings"].get("launcher", "local"),
    )
    if not is_complete(retry_runs(results, options, terminal())):
        raise SystemExit(1)


@app.command()
@exit_on_user_error
def status(
    sweep: Name = "quickstart",
    out: Out = None,
    watch: Annotated[bool, typer.Option("--watch", help="Until nothing is left to do.")] = False,
) -> None:
    """Say what is planned, queued, running, done, failed or lost, by the disk and by Slurm."""
    from oodbench.sweep import status as view

    results = _results(sweep, out)
    if watch:
        view.watch(results, terminal())
    else:
        view.show(results, terminal())


@app.command()
@exit_on_user_error
def cancel(sweep: Name = "quickstart", out: Out = None) -> None:
    """Cancel this sweep's jobs on the cluster, and no others; their runs can be launched again."""
    from oodbench.sweep.launchers.slurm_commands import cancel as cancel_jobs
    from oodbench.sweep.launchers.slurm_submissions import Submissions

    submissions = Submissions(_results(sweep, out))
    open_ = [s for s in submissions if not s.cancelled]
    count = cancel_jobs([s.name for s in open_])
    for submission in open_:
        submissions.write(replace(submission, cancelled=True))
    terminal().say(f"{count} jobs cancelled.")


@app.command()
@exit_on_user_error
def clean(
    sweep: Name = "quickstart",
    out: Out = None,
    weights: Annotated[bool, typer.Option("--weights", help="All kept weights, too.")] = False,
    yes: Yes = False,
) -> None:
    """Delete checkpoints of ended runs, runs not in the sweep, and predictions no rule chose."""
    from oodbench.report.prediction_metrics import spare

    results = _results(sweep, out)
    planned = results.plan()["runs"]
    strangers = [p for p in (results.path / "runs").glob("*") if p.name not in planned]
    ended = [i for i in planned if results.run(i).state().complete]
    checkpoints = [c for i in ended if (c := results.run(i).checkpoint).exists()]
    size = sum(f.stat().st_size for p in strangers for f in p.rglob("*") if f.is_file())
    predictions = spare(results)
    files = [*checkpoints, *predictions, *(weights_files(results, ended) if weights else ())]
    size += sum(file.stat().st_size for file in files)
    kept = len(files) - len(checkpoints) - len(predictions)
    terminal().say(
        f"{len(checkpoints)} checkpoints of ended runs, {len(predictions)} files of predictions that "
        f"no rule chose, {f'{kept} files of kept weights ' if weights else ''}and {len(strangers)} "
        f"runs that are not in the sweep: {size / 2**20:.1f} MB."
    )
    if not (files or strangers):
        return
    if not (yes or confirmed("Delete them?")):
        raise typer.Abort
    for file in files:
        file.unlink()
    for path in strangers:
        shutil.rmtree(path)


def _plan(parsed: Sweep, plugins: Sequence[str] | None, data_dir: Path | None) -> Plan:
    from oodbench.registry import load_plugins

    load_plugins([*parsed.plugins, *(plugins or ())])
    return make_plan(parsed, data_dir)


def _results(sweep: str, out: Path | None) -> Results:
    """The results directory that the user means by --out, by a directory or by a sweep."""
    if out is None and (Path(sweep) / "sweep.json").is_file():
        return Results(Path(sweep))
    return Results(out or Path("results") / read_sweep(find_sweep(sweep)).name)
