"""Sweeps on the command line: plan, launch, status, retry, clean."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oodbench.errors import UserError, reports_mistakes, unknown
from oodbench.plan import Impossible, Plan, Sweep, find, make_plan, read
from oodbench.records import Results, RunSpec

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Name = Annotated[str, typer.Argument(metavar="SWEEP", help="A file, or a name in sweeps/.")]
Out = Annotated[Path | None, typer.Option(help="The results directory; results/NAME by default.")]
DataDir = Annotated[Path | None, typer.Option(help="Where datasets that need files find them.")]
Plugins = Annotated[list[str] | None, typer.Option("--plugin", help="A module to import first.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE over the file's.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one per core or device.")]
Devices = Annotated[str, typer.Option(help="auto, cpu, or a list such as cuda:0,cuda:1.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of a run; changes the last bits.")]
Launcher = Annotated[str, typer.Option(help="local or debug.")]
KeepPredictions = Annotated[
    bool, typer.Option("--keep-predictions", help="Keep every example's logits at evaluations.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing.")]

console = Console()


@app.command()
@reports_mistakes
def plan(
    sweep: Name = "quickstart",
    out: Out = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    set_: Settings = None,
    workers: Workers = None,
) -> None:
    """Say how many runs of what a sweep holds, what is impossible, and about how long it takes."""
    from oodbench.estimate import estimate

    made = _plan(sweep, set_, plugin, data_dir)
    _show_plan(made)
    seconds = estimate(list(made.runs.values()), data_dir)
    count = workers or os.cpu_count() or 1
    console.print(
        f"About {_duration(seconds)} of training and evaluation on one core of this machine, "
        f"{_duration(seconds / count)} with {count} workers.",
        highlight=False,
    )


@app.command()
@reports_mistakes
def launch(
    sweep: Name = "quickstart",
    out: Out = None,
    launcher: Launcher = "local",
    workers: Workers = None,
    devices: Devices = "auto",
    threads: Threads = 1,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    set_: Settings = None,
    keep_predictions: KeepPredictions = False,
    yes: Yes = False,
) -> None:
    """Train the runs of a sweep that have not ended yet, then print its leaderboard."""
    made = _plan(sweep, set_, plugin, data_dir)
    _show_plan(made)
    if not made.runs:
        reasons = {f"{i.algorithm} on {i.dataset}: {i.reason}" for i in made.impossible}
        raise UserError(
            f"sweep '{made.sweep.name}' has no possible run: {'; '.join(sorted(reasons))}"
        )
    results = Results(out or Path("results") / made.sweep.name)
    _adopt(results, made, data_dir, plugin or [])
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Launch into {results.path}?", default=True, abort=True)
    ids = [i for i in made.runs if results.run(i).state() not in ("done", "diverged", "failed")]
    _train(
        results,
        made.runs,
        ids,
        launcher,
        workers,
        devices,
        threads,
        data_dir,
        plugin or [],
        keep_predictions,
    )


@app.command()
@reports_mistakes
def retry(
    sweep: Name = "quickstart",
    out: Out = None,
    launcher: Launcher = "local",
    workers: Workers = None,
    devices: Devices = "auto",
    threads: Threads = 1,
) -> None:
    """Train the failed and lost runs of a sweep again, from their last checkpoints."""
    results = _results(sweep, out)
    stored = results.plan()
    specs = {i: RunSpec.from_json(s) for i, s in stored["runs"].items()}
    ids = [i for i in specs if results.run(i).state() in ("failed", "lost")]
    settings = stored["settings"]
    data_dir = Path(settings["data_dir"]) if settings["data_dir"] else None
    from oodbench.registry import load_plugins

    load_plugins(settings["plugins"])
    for run_id in ids:
        results.run(run_id).forget()
    _train(results, specs, ids, launcher, workers, devices, threads, data_dir, settings["plugins"])


@app.command()
@reports_mistakes
def status(sweep: Name = "quickstart", out: Out = None) -> None:
    """Say what is planned, running, done, failed or lost; reads the disk only."""
    results = _results(sweep, out)
    stored = results.plan()
    states: dict[str, str] = {i: results.run(i).state() for i in stored["runs"]}
    rows: dict[tuple[str, str], Counter[str]] = {}
    for run_id, spec in stored["runs"].items():
        rows.setdefault((spec["dataset"], spec["label"]), Counter())[states[run_id]] += 1
    known = ["planned", "running", "done", "diverged", "failed", "lost"]
    table = Table("dataset", "algorithm", *known, title=f"{stored['name']} in {results.path}")
    for (dataset, label), counts in rows.items():
        table.add_row(dataset, label, *(str(counts[s] or "") for s in known))
    totals = Counter(states.values())
    table.add_section()
    table.add_row("all", "", *(str(totals[s] or "") for s in known))
    console.print(table)
    for run_id, state in states.items():
        if state == "running":
            beat = results.run(run_id).heartbeat() or {}
            console.print(
                f"running: {_words(stored['runs'][run_id])}: step {beat.get('step')} "
                f"on {beat.get('host')}",
                markup=False,
                highlight=False,
            )
        if state == "failed":
            failure = results.run(run_id).failure() or {}
            console.print(
                f"failed: {_words(stored['runs'][run_id])}: {failure.get('error')} "
                f"({results.run(run_id).path / 'failed.json'})",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    if totals["failed"] or totals["lost"]:
        console.print("`retry` trains failed and lost runs again; `launch` goes on with lost ones.")


@app.command()
@reports_mistakes
def clean(sweep: Name = "quickstart", out: Out = None, yes: Yes = False) -> None:
    """Delete the checkpoints of ended runs, and the directories of runs not in the sweep."""
    results = _results(sweep, out)
    planned = results.plan()["runs"]
    strangers = [p for p in (results.path / "runs").glob("*") if p.name not in planned]
    ended = [i for i in planned if results.run(i).end() is not None]
    checkpoints = [c for i in ended if (c := results.run(i).checkpoint).exists()]
    size = sum(f.stat().st_size for p in strangers for f in p.rglob("*") if f.is_file())
    size += sum(c.stat().st_size for c in checkpoints)
    console.print(
        f"{len(checkpoints)} checkpoints of ended runs and {len(strangers)} runs that are not in "
        f"the sweep: {size / 2**20:.1f} MB.",
        highlight=False,
    )
    if not (checkpoints or strangers):
        return
    if not yes:
        typer.confirm("Delete them?", abort=True)
    for checkpoint in checkpoints:
        checkpoint.unlink()
    for path in strangers:
        shutil.rmtree(path)


def _plan(
    sweep: str, settings: Sequence[str] | None, plugins: Sequence[str] | None, data_dir: Path | None
) -> Plan:
    parsed = read(find(sweep), settings or ())
    from oodbench.registry import load_plugins

    load_plugins(plugins or ())
    return make_plan(parsed, data_dir)


def _results(sweep: str, out: Path | None) -> Results:
    """The results directory that the user means by --out, by a directory or by a sweep."""
    if out is None and (Path(sweep) / "sweep.json").is_file():
        return Results(Path(sweep))
    return Results(out or Path("results") / read(find(sweep)).name)


def _adopt(results: Results, made: Plan, data_dir: Path | None, plugins: Sequence[str]) -> None:
    """Write the plan into the results directory, unless it holds another sweep's results."""
    runs = dict(made.runs)
    if (results.path / "sweep.json").exists():
        stored = results.plan()
        if stored["name"] != made.sweep.name:
            raise UserError(
                f"{results.path} holds the sweep '{stored['name']}', not '{made.sweep.name}'; "
                "use another --out"
            )
        old, new = stored["settings"]["sweep"], _fixed(made.sweep)
        for key, value in new.items():
            if old[key] != value:
                raise UserError(
                    f"{results.path} holds '{stored['name']}' with {key} {old[key]}, not {value}; "
                    "use another --out"
                )
        runs = {i: RunSpec.from_json(s) for i, s in stored["runs"].items()} | runs
    elif results.path.exists() and any(results.path.iterdir()):
        raise UserError(f"{results.path} is not empty and holds no sweep; use another --out")
    settings = {
        "sweep": _fixed(made.sweep),
        "data_dir": str(data_dir.absolute()) if data_dir else None,
        "plugins": list(plugins),
    }
    results.write_plan(made.sweep.name, settings, runs)


def _fixed(sweep: Sweep) -> dict[str, Any]:
    """What the runs of one results directory must share, so that a table never mixes them."""
    keys = {"steps", "evaluate_every", "network", "holdout", "validation_environments"}
    return sweep.model_dump(mode="json", include=keys)


def _train(
    results: Results,
    specs: Mapping[str, RunSpec],
    ids: Sequence[str],
    launcher: str,
    workers: int | None,
    wanted_devices: str,
    threads: int,
    data_dir: Path | None,
    plugins: Sequence[str],
    keep_predictions: bool = False,
) -> None:
    from oodbench import launchers
    from oodbench.train import Settings as RunSettings

    if launcher not in launchers.LAUNCHERS:
        raise unknown("launcher", launcher, launchers.LAUNCHERS)
    devices = launchers.devices(wanted_devices)
    count = workers or (os.cpu_count() or 1 if devices == ("cpu",) else len(devices))
    settings = RunSettings(data_dir, devices[0], threads, tuple(plugins), keep_predictions)
    job = launchers.Job(results, dict(specs), tuple(ids), settings, count, devices)
    try:
        states = launchers.LAUNCHERS[launcher](job) if ids else {}
    except KeyboardInterrupt:
        console.print("Interrupted; the same launch goes on where it was.")
        raise SystemExit(130) from None
    final = Counter(results.run(i).state() for i in specs)
    console.print(
        ", ".join(f"{n} {s}" for s, n in final.items())
        + f" of {len(specs)} runs in {results.path}",
        highlight=False,
    )
    elsewhere = sum(s == "elsewhere" for s in states.values())
    if elsewhere:
        console.print(f"{elsewhere} runs are being trained by another launch.")
    if final["done"] + final["diverged"]:
        from oodbench.report import print_table

        try:
            print_table(results)
        except UserError as error:  # the runs are done, whatever this selection rule lacks
            console.print(f"no table: {error}", markup=False, highlight=False)
    if final["failed"]:
        console.print("`status` shows why runs failed; `retry` trains them again.")
        raise SystemExit(1)


def _show_plan(made: Plan) -> None:
    table = Table("dataset", "test environments", "algorithm", "runs", "draws", "trials", "steps")
    rows: dict[tuple[str, str, str], list[RunSpec]] = {}
    for spec in made.runs.values():
        key = (spec.dataset, ", ".join(spec.test_environments), spec.label)
        rows.setdefault(key, []).append(spec)
    for key, specs in rows.items():
        draws, trials = {s.draw for s in specs}, {s.trial for s in specs}
        numbers = (len(specs), len(draws), len(trials), specs[0].steps)
        table.add_row(*key, *(str(n) for n in numbers))
    console.print(table)
    console.print(f"{len(made.runs)} runs in sweep '{made.sweep.name}'.", highlight=False)
    _show_impossible(made.impossible)


def _show_impossible(cells: Sequence[Impossible]) -> None:
    for cell in cells:
        console.print(
            f"impossible: {cell.algorithm} on {cell.dataset} "
            f"(test {', '.join(cell.test_environments)}): {cell.reason}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _words(spec: Mapping[str, Any]) -> str:
    from oodbench.progress import title

    return title(RunSpec.from_json(spec))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


if __name__ == "__main__":
    app()
