"""The speed-up by vectorized runs: whole runs, with evaluations, records and checkpoints."""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oodbench.algorithms import algorithms
from oodbench.results.directory import Directory
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.train.averages import AVERAGES
from oodbench.train.execute import execute_bundle
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized import why_not
from tests.bench import Row

STEPS = 600
SAMPLE = 8
"""The number of runs that are trained one at a time; their time is scaled up to all."""
QUADRATIC = ("CAD", "CausIRL_MMD", "CondCAD", "MMD", "RDM")
"""Methods that compare all pairs of a batch's examples, whose arithmetic leaves less overhead to share."""
METHOD_STEPS = 100
SEM = {"name": "LinearSEM", "variant": "FOU"}
FOUR = {"name": "Spirals", "num_environments": 4}
SMALL: dict[str, Any] = {"name": "MLP", "hparams": {"width": 64, "depth": 2}}
LINEAR: dict[str, Any] = {"datasets": [SEM], "hparam_draws": 8, "trials": 8}
MLPS: dict[str, Any] = {"datasets": [FOUR], "network": SMALL}
SWEEPS = (("64 linear SEM runs", LINEAR, ">= 8"), ("32 runs, MLP 2 x 64, 4 x 32", MLPS, ">= 2.5"))
"""The name of a case, the keys of its sweep that differ from those of `specs`, and the ratio to reach."""
CASES = (
    *((*SWEEPS[0], name, "none") for name in ("ERM", "IRM")),
    *((*SWEEPS[1], name, "none") for name in ("ERM", "ANDMask")),
    *((*SWEEPS[1], "ERM", average) for average in AVERAGES),
)
"""The sweep of a case, its method and its weight average."""


def specs(algorithm: str, changes: Mapping[str, Any], average: str = "none") -> list[RunSpec]:
    """The runs of a case, all of one bundle; 4 draws and 8 trials unless it says otherwise."""
    hparams = {"batch_size": 32} if "network" in changes else {}
    entry = {"name": algorithm, "average": average, "hparams": hparams}
    values = {"name": "bench", "hparam_draws": 4, "trials": 8, "steps": STEPS, **changes}
    return [*make_plan(validate({**values, "algorithms": [entry]}, "bench")).runs.values()]


def seconds(runs: list[RunSpec], results: Directory, vectorize: int, device: str) -> float:
    """Seconds of training some runs, `vectorize` of them at once; on a CPU, CPU seconds."""
    settings = TrainSettings(device=device, vectorize=vectorize)
    results.write_plan("bench", {}, runs)
    ends: list[State] = []
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    for first in range(0, len(runs), vectorize):
        some = [(run, results.run(run.id)) for run in runs[first : first + vectorize]]
        left = execute_bundle(some, settings, lambda run_id, state, message: ends.append(state))
        for run, directory in some:  # those that are never vectorized
            if run.id in left:
                execute_bundle([(run, directory)], settings, lambda i, state, m: ends.append(state))
    assert all(state.complete for state in ends) and len(ends) == len(runs)
    return clock() - start


def median_ratio(runs: list[RunSpec], folder: Path, device: str, rounds: int) -> float:
    """The time of runs one at a time over that as one program, in turn; the first round warms up."""
    ratios = []
    for turn in range(rounds + 1):
        place = folder / f"{turn}"
        alone = seconds(runs[:SAMPLE], Directory(place / "alone"), 1, device)
        together = seconds(runs, Directory(place / "together"), len(runs), device)
        ratios.append(alone * len(runs) / SAMPLE / together)
    return statistics.median(ratios[1:])


def case_rows(folder: Path, device: str = "cpu", rounds: int = 3, steps: int = STEPS) -> list[Row]:
    """Runs one at a time against the same as one program, in turn: the ratio of their times."""
    rows = []
    for number, (what, sweep, reach, algorithm, average) in enumerate(CASES):
        runs = specs(algorithm, {**sweep, "steps": steps}, average)
        assert len({run.bundle_key for run in runs}) == 1
        ratio = median_ratio(runs, folder / f"{number}", device, rounds)
        what = f"{what}, {runs[0].label}: one at a time / together, {device}"
        rows.append(Row(what, reach, f"{ratio:.1f}"))
    return rows


def method_rows(folder: Path, device: str = "cpu", rounds: int = 1) -> list[Row]:
    """The same ratio for 32 short runs of every method, the first round not counted.

    A method that cannot be vectorized has the reason in place of the ratio.
    """
    rows = []
    for name in algorithms:
        runs = specs(name, {**MLPS, "steps": METHOD_STEPS, "evaluate_every": METHOD_STEPS})
        if not runs or not algorithms.get(name).trains_network:
            continue
        reason = why_not(Run(runs[0], TrainSettings()))
        ratio = 0.0 if reason else median_ratio(runs, folder / name, device, rounds)
        what = f"{len(runs)} runs, MLP 2 x 64, 4 x 32, {name}: one at a time / together, {device}"
        reach = "-" if reason else ">= 1.6" if name in QUADRATIC else ">= 2.5"
        rows.append(Row(what, reach, f"alone: {reason}" if reason else f"{ratio:.1f}"))
    return rows
