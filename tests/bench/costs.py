"""How the cost of a sweep grows with environments, examples and runs: python -m tests.bench.costs.

Measured in CPU seconds on one thread, on Spirals with the race's network, and fitted by the model

    step  = base + environments * per_environment + environments * batch * per_example
    evaluation = base + examples * per_example
    sweep = start + runs * per_run

where per_run is the cost of 60 steps, an evaluation and the rest of a run.
"""

import json
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure
from scipy.optimize import nnls
from tabulate import tabulate

from oodbench.report.figures import STYLE
from oodbench.terminal import commands
from tests.bench import spirals_sweep
from tests.bench.race import ALGORITHMS, NETWORK, launched, machine

BLOCKS = 5
"""A figure is the median over this many blocks of calls."""
ENVIRONMENTS = (2, 4, 8, 16, 32, 64, 128)
BATCHES = (4, 16, 64, 256, 1024)
EXAMPLES = (64, 256, 1024, 4096, 16384)
RUNS = (1, 4, 16, 64)
FIXED_ENVIRONMENTS, FIXED_BATCH, SWEEP_STEPS, TRIALS = 16, 32, 60, 4
COEFFICIENTS = (("per_environment", 1e3, 3), ("per_example", 1e6, 2), ("per_run", 1e3, 0))
"""The coefficients in the table after the first one, with the unit's factor and the digits."""


def fit(terms: Mapping[str, Sequence[float]], seconds: Sequence[float]) -> dict[str, float]:
    """The model sum_k coefficient_k * term_k of the seconds, by least squares of relative errors.

    Returns the coefficients, none negative, and the largest relative `deviation` of a measured point.
    """
    y = np.asarray(seconds, dtype=float)
    matrix = np.stack([np.asarray(t, dtype=float) for t in terms.values()], 1) / y[:, None]
    coefficients, _ = nnls(matrix, np.ones(len(y)))
    deviation = float(np.abs(matrix @ coefficients - 1).max())
    return {**dict(zip(terms, map(float, coefficients), strict=True)), "deviation": deviation}


def cpu_seconds(work: Callable[[], object]) -> float:
    """The median CPU seconds of a call, over blocks that `timeit` makes long enough to measure."""
    work()  # the first call is slower
    timer = timeit.Timer(work, timer=time.process_time)
    number, _ = timer.autorange()
    return statistics.median(timer.repeat(BLOCKS, number)) / number


def run_of(algorithm: str, environments: int, batch: int, examples: int) -> Any:
    """A run in memory with `examples` in each environment, also in `test`."""
    from oodbench.sweep.plan import single
    from oodbench.train.run import Run
    from oodbench.train.settings import TrainSettings

    sizes = {"num_examples": examples, "num_test_examples": examples}
    dataset = {"name": "Spirals", "num_environments": environments, **sizes}
    entry = {"name": algorithm, "hparams": {"batch_size": batch}}
    return Run(single(dataset, entry, steps=10_000_000, network=NETWORK), TrainSettings())


def steps_of(algorithm: str) -> list[tuple[int, int, float]]:
    """(environments, batch, CPU seconds of a step), along both axes."""
    sizes = [(e, FIXED_BATCH) for e in ENVIRONMENTS] + [(FIXED_ENVIRONMENTS, b) for b in BATCHES]
    points = []
    for environments, batch in sizes:
        run = run_of(algorithm, environments, batch, batch * 5 // 4 + 64)
        points.append((environments, batch, cpu_seconds(partial(run.run_steps, 1))))
    return points


def evaluations() -> list[tuple[int, float]]:
    """(examples of all environments, CPU seconds of an evaluation)."""
    points = []
    for examples in EXAMPLES:
        run = run_of("ERM", FIXED_ENVIRONMENTS, FIXED_BATCH, examples)
        points.append(((FIXED_ENVIRONMENTS + 1) * examples, cpu_seconds(run.evaluate)))
    return points


def sweep_of(runs: int) -> dict[str, Any]:
    """A sweep of that many runs of ERM, which differ only in trial and draw."""
    trials = min(runs, TRIALS)
    counts = {"hparam_draws": runs // trials, "trials": trials}
    steps = {"steps": SWEEP_STEPS, "evaluate_every": SWEEP_STEPS}
    return spirals_sweep(["ERM"], FIXED_BATCH, **counts, **steps, network=NETWORK)


def sweeps(options: Sequence[str]) -> list[dict[str, float]]:
    """The seconds of sweeps of `RUNS` runs, each in its own process with one worker."""
    points = []
    for runs in RUNS:
        with tempfile.TemporaryDirectory() as name:
            cost, _ = launched(sweep_of(runs), Path(name), ["--workers", "1", *options])
        seconds = {"cpu_seconds": cost.cpu_seconds, "wall_seconds": cost.wall_seconds}
        points.append({"runs": runs, **seconds})
    return points


def measured(launches: Sequence[str]) -> dict[str, Any]:
    """All figures, on one thread; sweeps with each of the launches' options."""
    import torch

    torch.set_num_threads(1)
    ways = {options or "by default": options.split() for options in launches}
    return {
        "machine": machine(None),
        "steps": {algorithm: steps_of(algorithm) for algorithm in ALGORITHMS},
        "evaluations": evaluations(),
        "sweeps": {way: sweeps(options) for way, options in ways.items()},
    }


def fits_of(figures: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The model's coefficients, in seconds, by component."""
    fits = {}
    for algorithm, points in figures["steps"].items():
        terms = {
            "base": [1.0 for _ in points],
            "per_environment": [float(e) for e, _, _ in points],
            "per_example": [float(e * b) for e, b, _ in points],
        }
        fits[f"step of {algorithm}"] = fit(terms, [s for _, _, s in points])
    points = figures["evaluations"]
    counted = {"base": [1.0 for _ in points], "per_example": [float(n) for n, _ in points]}
    fits["evaluation"] = fit(counted, [s for _, s in points])
    for way, points in figures["sweeps"].items():
        start = {"start": [1.0 for _ in points], "per_run": [p["runs"] for p in points]}
        fits[f"sweep {way}"] = fit(start, [p["cpu_seconds"] for p in points])
    return fits


def shown(
    figures: Mapping[str, Any],
) -> tuple[list[str], list[list[str]], list[str], Callable[[Figure], None]]:
    """Return the fits as header, rows and notes of a table, and what plots the measured points with
    the fits as three log-log panels.
    """
    fits = fits_of(figures)

    def plot(figure: Figure) -> None:
        by_environments, by_batch, by_runs = figure.subplots(1, 3)
        for i, (algorithm, points) in enumerate(figures["steps"].items()):
            f = fits[f"step of {algorithm}"]
            along = [(by_environments, 0, points[: len(ENVIRONMENTS)])]
            along += [(by_batch, 1, points[len(ENVIRONMENTS) :])]
            for axes, axis, line in along:
                x = [p[axis] for p in line]
                y = [
                    f["base"] + e * f["per_environment"] + e * b * f["per_example"]
                    for e, b, _ in line
                ]
                axes.loglog(x, [1e3 * p[2] for p in line], "o", color=f"C{i}", ms=4)
                axes.loglog(x, [1e3 * s for s in y], color=f"C{i}", label=algorithm)
        for i, (way, points) in enumerate(figures["sweeps"].items()):
            runs = [p["runs"] for p in points]
            f = fits[f"sweep {way}"]
            y = [f["start"] + n * f["per_run"] for n in runs]
            by_runs.loglog(runs, [p["cpu_seconds"] for p in points], "o", color=f"C{i}", ms=4)
            by_runs.loglog(runs, y, color=f"C{i}", label=way)
        title = f"a step, {FIXED_BATCH} examples each"
        by_environments.set(title=title, xlabel="environments", ylabel="CPU ms")
        title = f"a step, {FIXED_ENVIRONMENTS} environments"
        by_batch.set(title=title, xlabel="examples of an environment")
        by_runs.set(title=f"a sweep, {SWEEP_STEPS} steps a run", xlabel="runs", ylabel="CPU s")
        by_environments.legend()
        by_runs.legend()

    rows = []
    for name, f in fits.items():
        first = f"{1e3 * f['base']:.2f}" if "base" in f else f"{1e3 * f['start']:.0f}"
        others = [
            f"{scale * f[key]:.{digits}f}" if key in f else ""
            for key, scale, digits in COEFFICIENTS
        ]
        rows.append([name, first, *others, f"{100 * f['deviation']:.0f} %"])
    header = ["", "start or base, ms", "an environment, ms", "an example, us", "a run, ms"]
    header.append("largest deviation")
    work = SWEEP_STEPS * figures["steps"]["ERM"][ENVIRONMENTS.index(FIXED_ENVIRONMENTS)][2]
    work += dict(figures["evaluations"])[(FIXED_ENVIRONMENTS + 1) * 1024]
    notes = [
        f"{SWEEP_STEPS} steps and an evaluation, as in each run of the sweeps: {1e3 * work:.0f} ms"
    ]
    notes += [f"{key}: {value}" for key, value in figures["machine"].items()]
    return header, rows, notes, plot


app = commands(__doc__)


@app.command()
def costs(
    launch: Annotated[
        list[str] | None,
        typer.Option(
            help="Further options of `sweep launch`; each use is measured as another line."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder for costs.json, .md, .png and .svg.")
    ] = Path("results/costs"),
) -> None:
    """Measure, fit, and write OUT/costs.json, its table costs.md and the picture."""
    figures = measured(launch or [""])
    out.mkdir(parents=True, exist_ok=True)
    fits = fits_of(figures)
    (out / "costs.json").write_text(json.dumps({**figures, "fits": fits}, indent=1) + "\n")
    header, rows, notes, plot = shown(figures)
    table = tabulate(rows, header, tablefmt="github", disable_numparse=True)
    text = "\n".join([table, "", *notes])
    (out / "costs.md").write_text(text + "\n")
    print(text)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.0, 3.6), layout="constrained")
        plot(figure)
        figure.savefig(out / "costs.png", dpi=150)
        figure.savefig(out / "costs.svg", metadata={"Date": None})


if __name__ == "__main__":
    app()
