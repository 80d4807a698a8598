"""One run on the command line, or the average of several that a sweep has trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from oodbench.errors import UserError, unknown
from oodbench.registry import load_plugins
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.run_spec import RunSpec, State
from oodbench.terminal import DataDir, DefaultCommands, Threads, commands, terminal
from oodbench.train.settings import TrainSettings

app = commands(__doc__, cls=DefaultCommands)

Source = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", help="A run.json, the directory of a run, or RESULTS:ID for a planned one."
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="The results directory; a new one, train/ID, by default.")
]
Device = Annotated[str, typer.Option(help="cpu, or a device such as cuda:0.")]
Plugins = Annotated[list[str] | None, typer.Option("--plugin", help="A module to import first.")]


@app.command("run")
def train(
    spec: Source,
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = "cpu",
    threads: Threads = 1,
    plugin: Plugins = None,
) -> None:
    """Train one run by its spec, in this process, and print how it ended.

    SPEC is a run.json, the directory of a run, or RESULTS:ID, a run that the sweep in the directory
    RESULTS plans or has trained. `report` and `oodbench.load` read the results directory as they
    read that of a sweep; the same --out again goes on where a run was interrupted. Exits with 1 if the
    run failed or another process trains it.
    """
    run_spec, stored = _read_source(spec)
    settings = _settings(stored, data_dir, device, threads, plugin)
    directory = _planned_directory(out or _new(run_spec.id), run_spec, settings)
    state, message = _trained(run_spec, directory, settings)
    _show(run_spec, directory, state, message)
    if not state.complete:
        raise SystemExit(1)


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
    device: Device = "cpu",
    threads: Threads = 1,
    plugin: Plugins = None,
) -> None:
    """Average the weights of the draws of each row and trial of a sweep (DiWA), and record the scores.

    The sweep must be launched with --keep-weights RULE. Only draws with the same initial weights are
    averaged. The averages are rows of their own in RESULTS, such as `ERM + DiWA`, and their weights are
    kept, too. The same command again averages new runs.
    """
    from oodbench.train.diwa import average_runs
    from oodbench.train.process import clean_process

    directory, console = Results(results), terminal()
    settings = _settings(directory.plan()["settings"], data_dir, device, threads, plugin)
    with clean_process(threads):
        made = average_runs(directory, rule, members.split(","), settings, console.say)
    console.say(f"{len(made)} averages; `python -m oodbench.report table {results}` shows them.")


def _read_source(text: str) -> tuple[RunSpec, Mapping[str, Any]]:
    """Return the spec that the user names, and the settings stored beside it; raises UserError."""
    path = Path(text)
    folder, _, run_id = text.rpartition(":")
    if folder and not path.exists():
        plan = Results(Path(folder)).plan()
        if run_id not in plan["runs"]:
            raise unknown("run", run_id, plan["runs"], folder)
        return RunSpec.from_json(plan["runs"][run_id]), plan["settings"]
    run = RunDirectory(path if path.is_dir() else path.parent)
    info = run.info() if path.is_dir() or path.name == "run.json" else None
    if info is None:
        raise UserError(
            f"{text} is no run: give a run.json, a directory that holds one, or RESULTS:ID"
        )
    return info.spec, info.provenance


def _settings(
    stored: Mapping[str, Any],
    data_dir: Path | None,
    device: str,
    threads: int,
    plugin: list[str] | None,
) -> TrainSettings:
    """Return the settings from the options and the stored plan; imports the plug-ins of both."""
    plugins = tuple(dict.fromkeys([*stored.get("plugins", ()), *(plugin or ())]))
    load_plugins(plugins)
    known = stored.get("data_dir")
    return TrainSettings(
        data_dir=data_dir or (Path(known) if known else None),
        device=device,
        threads=threads,
        plugins=plugins,
    )


def _new(run_id: str) -> Path:
    """Return a directory that does not exist yet."""
    names = (f"train/{run_id}" + (f"-{n}" if n > 1 else "") for n in range(1, 10**6))
    return next(path for path in map(Path, names) if not path.exists())


def _planned_directory(out: Path, spec: RunSpec, settings: TrainSettings) -> RunDirectory:
    """Return the run's directory in a results directory that plans it; raises UserError if
    others use it.
    """
    results = Results(out)
    if (out / "sweep.json").exists():
        if spec.id not in results.plan()["runs"]:
            raise UserError(f"{out} holds results without the run {spec.id}; use another directory")
    elif out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty and holds no results; use another directory")
    else:
        stored: dict[str, Any] = {
            "sweep": {},
            "data_dir": str(settings.data_dir.absolute()) if settings.data_dir else None,
            "plugins": list(settings.plugins),
            "keep_predictions": settings.keep_predictions,
            "keep_weights": list(settings.keep_weights),
            "launcher": "local",
            "resources": {},
        }
        results.write_plan(f"run-{spec.id}", stored, {spec.id: spec})
    return results.run(spec.id)


def _trained(spec: RunSpec, directory: RunDirectory, settings: TrainSettings) -> tuple[State, str]:
    """Train the run under a progress bar; returns how it ended, and why if it failed."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    from oodbench.train.execute import execute

    directory.forget()
    console = terminal()
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not console.is_interactive)
    with bar:
        task = bar.add_task("steps", total=spec.steps)
        try:
            return execute(spec, directory, settings, lambda step: bar.update(task, completed=step))
        except KeyboardInterrupt:
            bar.stop()
            out = directory.path.parent.parent
            console.say(f"Interrupted; the same command with --out {out} goes on where it was.")
            raise SystemExit(130) from None


def _show(spec: RunSpec, directory: RunDirectory, state: State, message: str) -> None:
    """Print how the run ended, where its records are, and the main metric of the last one."""
    console = terminal()
    records, info = directory.records(), directory.info()
    step = records[-1]["step"] if records else 0
    console.say(f"{state}" + (f": {message}" if message else f" at step {step} of {spec.steps}"))
    console.say(f"{len(records)} records in {directory.path / 'metrics.jsonl'}")
    if not records or info is None:
        return
    metric = info.context["metric"]
    for e in records[-1]["evaluations"]:
        if e["metric"] == metric and e["split"] == "in":
            value = "not finite" if e["value"] is None else f"{e['value']:.4g}"
            note = " (test)" if e["environment"] in spec.test_environments else ""
            console.say(f"  {metric} in {e['environment']}{note}: {value}")
