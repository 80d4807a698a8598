"""Runs that are trained in bundles of a size."""

from collections.abc import Sequence

from oodbench.results.run_spec import Evaluation, RunSpec
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized.program import VectorizedProgram


def in_bundles(
    specs: Sequence[RunSpec], size: int, blocks: Sequence[int]
) -> list[list[Evaluation]]:
    """The last evaluations of runs of which `size` are vectorized, after blocks of so many steps."""
    evaluations = []
    for start in range(0, len(specs), size):
        runs = [Run(spec, TrainSettings()) for spec in specs[start : start + size]]
        program = VectorizedProgram(runs)
        for steps in blocks:
            program.run_steps(steps)
            of_bundle = program.evaluate(range(len(runs)))
        evaluations += of_bundle
    return evaluations
