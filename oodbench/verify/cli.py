"""Papers' printed numbers compared with ours: python -m oodbench.verify [NAME...]."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from oodbench.errors import MissingError, UserError, unknown
from oodbench.report.tables import FORMATS, print_sheet
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions
from oodbench.sweep.resolve import check_requirements
from oodbench.terminal import Workers, commands, terminal
from oodbench.verify.measure import results, train
from oodbench.verify.targets import Experiment, experiment_names, load_experiment
from oodbench.verify.verdicts import compare_targets, verdict_sheet

app = commands(__doc__)


@app.command()
def verify(
    name: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    only: Annotated[
        str | None, typer.Option(help="cheap: experiments that take minutes on two cores.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Instead of the experiment's number.")
    ] = None,
    read: Annotated[
        bool, typer.Option("--read", help="Train nothing; compare the results in OUT.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Holds the sweeps' results.")] = Path("results/verify"),
    save: Annotated[Path | None, typer.Option(help="Write NAME.json here, for the pages.")] = None,
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "terminal",
    launcher: Annotated[str, typer.Option(help="As for `sweep launch`.")] = "local",
    workers: Workers = None,
    devices: Annotated[str, typer.Option(help="As for `sweep launch`.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="As for `sweep launch`.")] = None,
) -> None:
    """Run papers' experiments and compare the numbers; with the same OUT it continues an earlier call.

    Without names, `--list`, `--read` and `--only` apply to all experiments. `--only` skips experiments
    without data or package. The exit code is 1 if a run failed, or if a target that is marked as
    reproducible has no value, a diverged trial, or a difference of more than 3 standard errors.
    """
    if only not in (None, "cheap"):
        raise unknown("value", only, ("cheap",), "--only")
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    if not (name or only or list_ or read):
        raise UserError("name experiments (--list shows them), or give --only cheap")
    wanted = [
        e for e in map(load_experiment, name or experiment_names()) if e.cheap or only is None
    ]
    if list_:
        _list(wanted)
        return
    options = LaunchOptions(
        out=out, launcher=launcher, workers=workers, devices=devices, data_dir=data_dir
    )
    if not read:
        wanted = _possible(wanted, data_dir, leave_out=only is not None)
    missed = False
    for experiment in wanted:
        if not read:
            missed |= train(experiment, out, trials, options)
        measured = results(experiment, out, trials)
        print_sheet(verdict_sheet(experiment, measured), format_)
        missed |= any(c.missed for c in compare_targets(experiment, measured))
        if save is not None:
            save.mkdir(parents=True, exist_ok=True)
            (save / f"{experiment.name}.json").write_text(measured.text())
    if missed:
        raise SystemExit(1)


def _possible(
    experiments: Sequence[Experiment], data_dir: Path | None, *, leave_out: bool
) -> list[Experiment]:
    possible = []
    for experiment in experiments:
        try:
            for name in experiment.sweeps:
                check_requirements(read_sweep(find_sweep(name)), data_dir)
        except MissingError as error:
            if not leave_out:
                raise
            terminal(stderr=True).say(f"{experiment.name} is left out: it needs `{error.command}`")
        else:
            possible.append(experiment)
    if not possible:
        raise UserError("no experiment is left")
    return possible


def _list(experiments: Sequence[Experiment]) -> None:
    header = ("experiment", "cost", "targets", "sweeps or computation", "title")
    rows = []
    for e in experiments:
        how = ", ".join(dict.fromkeys([*e.sweeps, *([e.compute] if e.compute else [])]))
        cost = "cheap" if e.cheap else "long"
        rows.append((e.name, cost, str(len(e.targets)), how, e.title))
    console = terminal()
    console.print(console.tables(header, rows, prose=(3, 4)), soft_wrap=True)
