"""How a sweep will be trained, and how long it takes: a few measured steps of each kind of run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from oodbench.job import Settings
from oodbench.records import RunSpec

BUDGET = 0.3
"""Seconds of updates that are measured of each kind of run."""
SAMPLE = 8
"""Runs that are measured together where they are trained together."""


@dataclass
class Forecast:
    """What to expect of some runs."""

    seconds: float = 0.0
    """Of training and evaluation on one thread."""
    alone: dict[str, str] = field(default_factory=dict)
    """The rows of the table whose runs are trained one at a time, as `LABEL on DATASET`, and why."""


def forecast(specs: Sequence[RunSpec], settings: Settings) -> Forecast:
    """Measure a few steps and an evaluation of every kind of run."""
    import torch

    from oodbench.run import Run
    from oodbench.stack import Stack
    from oodbench.stack_sizes import alone
    from oodbench.train import Alone, Program

    torch.set_num_threads(settings.threads)
    kinds: dict[tuple[str, ...], list[RunSpec]] = {}
    for spec in specs:
        kinds.setdefault((spec.label, *spec.kind), []).append(spec)
    found = Forecast()
    for alike in kinds.values():
        runs = [Run(alike[0], settings)]
        reason = alone(runs[0], settings)
        if reason is None:
            runs += [Run(spec, settings) for spec in alike[1 : settings.batch_runs or SAMPLE]]
        else:
            found.alone[f"{alike[0].label} on {alike[0].dataset}"] = reason
        program: Program = Alone(runs) if reason is not None else Stack(runs)
        program.advance(1)
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < BUDGET and runs[0].step < alike[0].steps:
            program.advance(1)
            steps += 1
        step = (time.perf_counter() - start) / max(steps, 1) / len(runs)
        start = time.perf_counter()
        program.evaluate(range(len(runs)))
        evaluation = (time.perf_counter() - start) / len(runs)
        for spec in alike:
            evaluations = -(-spec.steps // spec.evaluate_every)
            found.seconds += spec.steps * step + evaluations * evaluation
    return found
