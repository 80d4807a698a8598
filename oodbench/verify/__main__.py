"""Papers' printed numbers compared with ours: python -m oodbench.verify [NAME...]."""

from oodbench.arithmetic import prepare

if __name__ == "__main__":
    prepare()  # before numpy and torch are loaded

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from oodbench.errors import MissingError, UserError, unknown
from oodbench.files import write_whole
from oodbench.report.tables import FORMATS, print_sheet
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, is_complete, launch
from oodbench.sweep.resolve import check_requirements
from oodbench.terminal import commands, terminal
from oodbench.verify.measure import results
from oodbench.verify.targets import Experiment, experiment_names, load_experiment
from oodbench.verify.verdicts import compare_targets, verdict_sheet

app = commands(__doc__)
CHEAP = "cheap"
"""The name of all experiments that take minutes."""


@app.command()
def verify(
    name: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Instead of the experiment's number.")
    ] = None,
    read: Annotated[
        bool, typer.Option("--read", help="Train nothing; compare the results in OUT.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Holds the sweeps' results, and our numbers in NAME.json.")
    ] = Path("results/verify"),
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "terminal",
    launcher: Annotated[str, typer.Option(help="As for `sweep launch`.")] = "local",
    data_dir: Annotated[Path | None, typer.Option(help="As for `sweep launch`.")] = None,
) -> None:
    """Run papers' experiments and compare the numbers; with the same OUT it continues an earlier call.

    Without names it lists the experiments, or with `--read` compares all of them. The name `cheap` means
    those that take minutes on two cores, except those without data or package here. The exit code is 1 if
    a run failed, or if a target that is marked as reproducible has no value, a diverged trial, or a
    difference of more than 3 standard errors.
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
            write_whole(out / f"{experiment.name}.json", measured.text())
    if missed:
        raise SystemExit(1)


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
    """Whether all runs of the experiment's sweeps have results now."""
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
