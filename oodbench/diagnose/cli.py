"""Pictures and tables of what the AND-mask does, and why: python -m oodbench.diagnose NAME."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oodbench.errors import UserError
from oodbench.terminal import commands

if TYPE_CHECKING:
    from oodbench.report.figures import Finding

app = commands(__doc__, no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="The folder for NAME.png and NAME.svg.")]
Tau = Annotated[float, typer.Option(help="The threshold of the mask.")]
Counts = Annotated[str, typer.Option(help="Numbers of environments, separated by commas.")]
OUT = Path("results/diagnose")


@app.command()
def kept(
    run: Annotated[Path | None, typer.Option(help="A recorded run: RESULTS/runs/ID.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the new run, without --run.")] = 300,
    tau: Tau = 1.0,
    out: Out = OUT,
) -> None:
    """Fraction kept and weight norm of each layer during a run of AND-mask."""
    from oodbench.diagnose.recorded import kept_components

    _show(kept_components(run, steps, tau), "kept", out)


@app.command("random-gradients")
def random_gradients(
    environments: Counts = "2,3,5,7,10,15,20,30,40,60,80,100,150,200",
    tau: Tau = 0.6,
    trials: Annotated[int, typer.Option(min=2, help="Random gradients per estimate.")] = 20,
    out: Out = OUT,
) -> None:
    """Size of the mean of random gradients, masked and not: exact and measured."""
    from oodbench.diagnose import mean_gradients

    finding = mean_gradients.random_gradients(_counts(environments), tau, trials)
    _show(finding, "random-gradients", out)


@app.command()
def correlation(
    environments: Annotated[int, typer.Option(min=2)] = 16,
    trials: Annotated[int, typer.Option(min=2, help="Networks and data sets.")] = 10,
    out: Out = OUT,
) -> None:
    """Correlation of masked gradients with mechanism and shortcut, AND and XOR, against tau."""
    from oodbench.diagnose import mean_gradients

    _show(mean_gradients.correlation(environments, trials), "correlation", out)


@app.command()
def consistency(out: Out = OUT) -> None:
    """Consistency scores of minima where they are known: diagonal Hessians and the patchwork."""
    from oodbench.diagnose import consistency as examples

    _show(examples.consistency(), "consistency", out)


@app.command()
def environments(
    environments: Counts = "2,4,8,16,32",
    trials: Annotated[int, typer.Option(min=1)] = 3,
    steps: Annotated[int, typer.Option(min=1)] = 300,
    out: Out = OUT,
) -> None:
    """Test accuracy of ERM and AND-mask by the number of environments."""
    from oodbench.diagnose import environment_counts

    finding = environment_counts.environments(_counts(environments), trials, steps)
    _show(finding, "environments", out)


@app.command()
def memorization(
    results: Annotated[
        Path, typer.Argument(help="The results of a sweep on NoisyLabels or CIFARNoise.")
    ],
    out: Out = OUT,
) -> None:
    """Accuracy on training, wrong and test labels of every method of a sweep, and its curves."""
    from oodbench.diagnose import recorded

    _show(recorded.memorization(results), results.resolve().name, out)


@app.command()
def trials(
    results: Annotated[Path, typer.Argument(help="The results of a sweep on one dataset.")],
    selection: Annotated[
        str, typer.Option("--rule", help="Selection rules, separated by commas.")
    ] = "train_val,val_env",
    threshold: Annotated[float, typer.Option(help="The value from which a trial counts.")] = 0.9,
    out: Out = OUT,
) -> None:
    """The test value of every trial of a sweep, and how many reach a threshold."""
    from oodbench.diagnose import recorded

    rules = tuple(selection.split(","))
    _show(recorded.trials(results, rules, threshold), f"{results.resolve().name}-trials", out)


def _counts(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"--environments takes numbers such as 2,4,8, not '{text}'") from None


def _show(finding: "Finding", name: str, out: Path) -> None:
    from oodbench.report.figures import show

    show(finding, name, out)
