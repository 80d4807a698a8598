"""How long a sweep will take: a few measured steps and one evaluation of each kind of run."""

import time
from collections.abc import Sequence
from pathlib import Path

from oodbench.records import RunSpec

BUDGET = 0.3
"""Seconds of updates that are measured of each (dataset, algorithm)."""


def estimate(specs: Sequence[RunSpec], data_dir: Path | None) -> float:
    """Seconds of training and evaluation of all runs, one after the other on one thread."""
    import torch

    from oodbench.job import Settings
    from oodbench.run import Run

    torch.set_num_threads(1)
    measured: dict[tuple[object, ...], tuple[float, float]] = {}
    total = 0.0
    for spec in specs:
        kind = (spec.dataset, str(spec.options), spec.label, len(spec.test_environments))
        if kind not in measured:
            run = Run(spec, Settings(data_dir))
            run.advance(1)
            start, steps = time.perf_counter(), 0
            while time.perf_counter() - start < BUDGET and run.step < spec.steps:
                run.advance(1)
                steps += 1
            step = (time.perf_counter() - start) / max(steps, 1)
            start = time.perf_counter()
            run.evaluate()
            measured[kind] = (step, time.perf_counter() - start)
        step, evaluation = measured[kind]
        total += spec.steps * step + -(-spec.steps // spec.evaluate_every) * evaluation
    return total
