"""What a dataset leaves to gain, and pictures of recorded runs: python -m oodbench.diagnose NAME."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oodbench.terminal import DataDir, Plugins, commands, terminal
from oodbench.yaml_values import assignments

if TYPE_CHECKING:
    from oodbench.report.figures import Finding

app = commands(
    __doc__,
    no_args_is_help=True,
    renamed={
        "random-gradients": "`oodbench verify random-gradients` measures the figure",
        "correlation": "`oodbench verify gradient-correlation` measures the figure",
        "consistency": "what it showed stood in the findings of version 0.3.0",
        "environments": "what it showed stood in the findings of version 0.3.0",
    },
)

Out = Annotated[Path, typer.Option(help="The folder for NAME.png and NAME.svg.")]
OUT = Path("results/diagnose")


@app.command()
def dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset.")],
    data_dir: DataDir = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="OPTION=VALUE of the dataset.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of a run; at most 600 by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The directory that keeps the runs; by default none.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Train ERM: how far it is from the constant answer and the ceiling, and is it on the line?"""
    from oodbench.diagnose.head_room import head_room, show
    from oodbench.registry import load_plugins
    from oodbench.sweep.launchers import LaunchOptions

    load_plugins(plugin or [])
    settings = assignments("--set", set_ or [])
    with tempfile.TemporaryDirectory() as scratch:
        options = LaunchOptions(
            out=out or Path(scratch), data_dir=data_dir, plugins=tuple(plugin or ())
        )
        show(head_room(name, settings, options, steps=steps), terminal())


@app.command()
def kept(
    run: Annotated[Path | None, typer.Option(help="A recorded run: RESULTS/runs/ID.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the new run, without --run.")] = 300,
    tau: Annotated[float, typer.Option(help="The threshold of the mask.")] = 1.0,
    out: Out = OUT,
) -> None:
    """Show the fraction kept and the weight norm of each layer during a run of AND-mask."""
    from oodbench.diagnose.recorded import kept_components

    _show(kept_components(run, steps, tau), "kept", out)


@app.command()
def memorization(
    results: Annotated[
        Path, typer.Argument(help="The results of a sweep on NoisyLabels or CIFARNoise.")
    ],
    out: Out = OUT,
) -> None:
    """Show the accuracy on training, wrong and test labels of every method of a sweep, and its curves."""
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
    """Show the test value of every trial of a sweep, and how many reach a threshold."""
    from oodbench.diagnose import recorded

    rules = tuple(selection.split(","))
    _show(recorded.trials(results, rules, threshold), f"{results.resolve().name}-trials", out)


def _show(finding: "Finding", name: str, out: Path) -> None:
    from oodbench.report.figures import show

    show(finding, name, out)
