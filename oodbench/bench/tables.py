"""What tables cost on large sweeps, and how often intervals cover what they should."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from oodbench.bench.rows import Row
from oodbench.report.statistics import hierarchical_bootstrap, paired_differences
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec, State

ENVIRONMENTS = ("A", "B", "C", "D")
EVALUATIONS = 20


def write_sweep(path: Path, count: int) -> None:
    """A results directory with `count` ended runs of 20 evaluations of 16 values each."""
    generator, results, specs = random.Random(0), Results(path), {}
    for number in range(count):
        rest, environment = divmod(number, len(ENVIRONMENTS))
        rest, algorithm = divmod(rest, 10)
        rest, dataset = divmod(rest, 5)
        draw, trial = divmod(rest, 5)
        run = RunSpec(
            dataset=f"Dataset{dataset}",
            algorithm=f"Method{algorithm}",
            hparams={"lr": generator.random(), "weight_decay": 0.0, "batch_size": 64},
            label=f"Method{algorithm}",
            network="MLP",
            network_hparams={"width": 256},
            test_environments=(ENVIRONMENTS[environment],),
            draw=draw,
            trial=trial,
            steps=2000,
            evaluate_every=100,
        )
        specs[run.id] = run
        _write_run(results, run, generator)
    results.write_plan("bench", {}, specs)


def _write_run(results: Results, run: RunSpec, generator: random.Random) -> None:
    directory = results.run(run.id)
    directory.path.mkdir(parents=True)
    context = {
        "dataset_label": run.dataset,
        "training_environments": [e for e in ENVIRONMENTS if e not in run.test_environments],
        "metric": "accuracy",
        "higher_is_better": True,
    }
    directory.start(run, context, {"oodbench": "bench", "commit": "0" * 40})
    lines = []
    for number in range(1, EVALUATIONS + 1):
        evaluations = [
            {"environment": e, "split": s, "metric": m, "value": generator.random(), "count": 100}
            for e in ENVIRONMENTS
            for s in ("in", "out")
            for m in ("accuracy", "loss")
        ]
        cost = {"training_seconds": float(number), "evaluation_seconds": 0.1}
        record = {"step": 100 * number, "train": {}, "cost": cost, "evaluations": evaluations}
        lines.append(json.dumps(record) + "\n")
    (directory.path / "metrics.jsonl").write_text("".join(lines))
    directory.finish(State.DONE, run.steps, 20.0)


def command_seconds(*arguments: str | Path) -> float:
    """Seconds of a command of oodbench."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def table_time(directory: Path, count: int = 10_000) -> list[Row]:
    """Seconds of the command `report table` without and with the cache."""
    write_sweep(directory, count)
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(3):
        (directory / "cache.arrow").unlink(missing_ok=True)
        for seconds in (cold, warm):
            seconds.append(command_seconds("oodbench.report", "table", directory))
    what = f"report table on {count} runs x {EVALUATIONS} evaluations"
    return [
        Row(what=f"{what}, cold, s", reach="<= 5", measured=f"{min(cold):.2f}"),
        Row(what=f"{what}, warm, s", reach="<= 1", measured=f"{min(warm):.2f}"),
    ]


def page_cost(directory: Path) -> list[Row]:
    """Seconds and size of the HTML report of the sweep that `table_time` wrote, nothing cached."""
    (directory / "cache.arrow").unlink(missing_ok=True)
    seconds = command_seconds("oodbench.report", "html", directory)
    size = (directory / "report.html").stat().st_size / 1e6
    work = "report html of 10,000 runs x 20 evaluations, nothing cached"
    return [
        Row(what=f"{work}, s", reach="<= 20", measured=f"{seconds:.1f}"),
        Row(what=f"{work}, MB", reach="<= 5", measured=f"{size:.1f}"),
    ]


def memory(directory: Path) -> Row:
    """Peak memory of loading and selecting: that of the program, and 100,000 times that of a run."""
    code = (
        "import resource, sys; from pathlib import Path; from oodbench.results.directory import Results;"
        "import oodbench.results.cache, oodbench.selection as s;"
        "from oodbench.results.frames import load_frames;"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; base = peak();"
        "f = load_frames(Results(Path(sys.argv[1]))); s.choose(f); print(len(f.runs), base, peak())"
    )
    command = [sys.executable, "-c", code, str(directory)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    runs, base, peak = map(int, result.stdout.split())
    gigabytes = (base + (peak - base) / runs * 100_000) / 2**20
    what = f"memory of 100,000 runs, from that of {runs}, GB"
    return Row(what=what, reach="<= 4", measured=f"{gigabytes:.1f}")


def coverage(trials: int, datasets: int, simulations: int = 2000) -> tuple[float, float]:
    """How often the 95 % interval of a mean gain, and the bootstrap's percentiles, hold the truth.

    The gains have random effects of dataset (1), environment (0.5) and trial (1); over one dataset
    its own effects are fixed.
    """
    rng = np.random.default_rng(trials)
    shape = (datasets, 2, trials)
    key = pd.MultiIndex.from_product([range(n) for n in shape]).to_frame(index=False)
    names = ["dataset", "environment", "trial"]
    zeros = key.set_axis(names, axis=1).assign(label="A", value=0.0, higher=True)
    found = []
    for _ in range(simulations):
        place = rng.normal(size=(datasets, 1, 1)) + rng.normal(size=(datasets, 2, 1)) / 2
        value = (place + rng.normal(size=shape)).ravel()
        frame = pd.concat([zeros, zeros.assign(label="B", value=value)])
        truth = float(place.mean()) if datasets == 1 else 0.0
        gain = paired_differences(frame, "A", resamples=1)[0].gain
        draws = hierarchical_bootstrap(zeros.assign(gain=value), 400)
        low, high = np.quantile(draws, [0.025, 0.975])
        found.append((gain.low <= truth <= gain.high, low <= truth <= high))
    t, bootstrap = np.mean(found, axis=0)
    return float(t), float(bootstrap)


def coverages() -> list[Row]:
    """`coverage` at 3, 5 and 10 trials, on one dataset and over four."""
    rows = []
    for datasets in (1, 4):
        for trials in (3, 5, 10):
            t, bootstrap = (f"{100 * c:.1f} %" for c in coverage(trials, datasets))
            what = f"coverage of a gain's interval, {trials} trials, {datasets} dataset(s)"
            measured = f"{t} (bootstrap {bootstrap})"
            rows.append(Row(what=what, reach="93 to 97 %", measured=measured))
    return rows
