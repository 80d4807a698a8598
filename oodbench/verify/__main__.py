"""Papers' printed numbers compared with ours: python -m oodbench.verify [NAME...]."""

from oodbench.arithmetic import prepare

if __name__ == "__main__":
    prepare()  # before numpy and torch are loaded

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from oodbench.errors import MissingError, UserError, unknown
from oodbench.files import write_whole
from oodbench.identity import commit
from oodbench.report.tables import FORMATS, print_sheet
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.tables import Tables
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, is_complete, launch
from oodbench.sweep.resolve import check_requirements
from oodbench.terminal import commands, terminal
from oodbench.verify.measured import Measured, read_values
from oodbench.verify.targets import Experiment, Values, experiment_names, load_experiment
from oodbench.verify.verdicts import compare_targets, verdict_sheet
from oodbench.version import __version__

app = commands(__doc__)
CHEAP = "cheap"
"""The name of all experiments that take minutes on two cores."""


@app.command()
def verify(
    name: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="By default the experiment's number.")
    ] = None,
    read: Annotated[
        bool, typer.Option("--read", help="Compare the results in OUT without training.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Gets the sweeps' results, and our numbers in NAME.json.")
    ] = Path("results/verify"),
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "terminal",
    launcher: Annotated[str, typer.Option(help="As for `sweep launch`.")] = "local",
    data_dir: Annotated[Path | None, typer.Option(help="As for `sweep launch`.")] = None,
) -> None:
    """Run papers' experiments and compare the numbers; the same OUT continues an earlier call.

    Without names, experiments are listed, or with `--read` all are compared. The name `cheap` stands for
    the experiments that take minutes on two cores, without those whose data or packages are missing. The
    exit code is 1 if a run failed, or if a target that is marked as reproducible has no value, a diverged
    trial, or a difference of more than 3 standard errors.
    """
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    is_cheap = name == [CHEAP]
    names = experiment_names() if is_cheap or not name else name
    wanted = [e for e in map(load_experiment, names) if e.cheap or not is_cheap]
    if not (name or read):
        return _list(wanted)
    options = LaunchOptions(out=out, launcher=launcher, data_dir=data_dir, failed=True)
    wanted = [e for e in wanted if read or _is_possible(e, data_dir, leave_out=is_cheap)]
    if not wanted:
        raise UserError("no experiment is left")
    missed = False
    for experiment in wanted:
        if not read:
            missed |= not _train(experiment, trials, options)
        measured = results(experiment, out, trials)
        print_sheet(verdict_sheet(experiment, measured), format_)
        missed |= any(c.missed for c in compare_targets(experiment, measured))
        if measured.values:
            out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(measured.model_dump(), indent=1)
            write_whole(out / f"{experiment.name}.json", f"{text}\n")
    if missed:
        raise SystemExit(1)


def results(experiment: Experiment, out: Path, trials: int | None) -> Measured:
    """Our numbers for an experiment, from its sweeps' results in `out`, with their provenance."""
    started = [name for name in experiment.sweeps if (out / name / "sweep.json").is_file()]
    frames: Mapping[str, Tables] = {name: read_results(Directory(out / name)) for name in started}
    values = our_values(experiment, frames, trials or experiment.trials)
    return Measured(values=values, provenance=_provenance(experiment, frames))


def our_values(experiment: Experiment, frames: Mapping[str, Tables], trials: int) -> Values:
    """Our values by `Target.key`, from sweeps' results or a computation; some targets may have none."""
    computed: Values = {}
    if experiment.compute is not None:
        from oodbench.verify.computations import COMPUTATIONS  # imports torch

        if experiment.compute not in COMPUTATIONS:
            raise unknown("computation", experiment.compute, COMPUTATIONS)
        computed = COMPUTATIONS[experiment.compute](trials, frames)
    values: Values = {}
    for target in experiment.targets:
        if target.sweep in frames:
            found = read_values(target, frames[target.sweep])
        elif target.sweep or target.row not in computed:
            continue
        else:
            found = computed[target.row]
        # to 10 digits, as the last bits differ between machines
        values[target.key] = [float(f"{target.scale * value:.10g}") for value in found]
    return values


def _provenance(experiment: Experiment, frames: Mapping[str, Tables]) -> dict[str, list[str]]:
    from oodbench.datasets import make

    items: dict[str, set[str]] = {"Protocol": set(), "Code": set(), "torch": set(), "Data": set()}
    for name, frame in frames.items():
        items["Protocol"].add(read_sweep(find_sweep(name)).protocol or f"none (sweep {name})")
        runs = [p for p in frame.runs["provenance"] if isinstance(p, Mapping) and p]
        items["Code"] |= {str(p["commit"] or p["oodbench"]) for p in runs}
        items["torch"] |= {str(p["torch"]) for p in runs}
        for run in frame.runs.drop_duplicates("dataset_label").itertuples():
            checksums = make(run.dataset, run.options).checksums
            items["Data"] |= {f"{Path(file).name} md5 {md5}" for file, md5 in checksums.items()}
    if experiment.compute is not None:
        items["Code"].add(commit() or __version__)
        items["torch"].add(version("torch"))
    return {name: sorted(texts) for name, texts in items.items() if texts}


def _is_possible(experiment: Experiment, data_dir: Path | None, *, leave_out: bool) -> bool:
    try:
        for name in experiment.sweeps:
            check_requirements(read_sweep(find_sweep(name)), data_dir)
    except MissingError as error:
        if not leave_out:
            raise
        terminal(stderr=True).say(f"{experiment.name} is left out: it needs `{error.command}`")
        return False
    return True


def _train(experiment: Experiment, trials: int | None, options: LaunchOptions) -> bool:
    # returns whether all runs have results
    settings = [] if trials is None else [f"trials={trials}"]
    kept = replace(options, keep_predictions=experiment.keep_predictions)
    counts = [
        launch(read_sweep(find_sweep(name), settings), replace(kept, out=options.out / name))
        for name in experiment.sweeps
    ]
    return all(map(is_complete, counts))


def _list(experiments: list[Experiment]) -> None:
    header = ("experiment", "cost", "targets", "sweeps or computation", "title")
    rows = []
    for e in experiments:
        how = ", ".join(dict.fromkeys([*e.sweeps, *filter(None, [e.compute])]))
        rows.append((e.name, "cheap" if e.cheap else "long", str(len(e.targets)), how, e.title))
    console = terminal()
    console.print(console.tables(header, rows, prose=(3, 4)), soft_wrap=True)


if __name__ == "__main__":
    app()
