"""Forecasts how a sweep is trained and for how long, from a few measured steps of its runs."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from oodbench.errors import UserError, definition, described, is_engine
from oodbench.results.run_spec import RunSpec
from oodbench.train.settings import TrainSettings

if TYPE_CHECKING:
    from oodbench.train.loop import Program

BUDGET = 0.05
"""Seconds for which the updates of a bundle are measured, and again for its evaluation."""
SLOW_STEP = 0.5
"""Seconds of a first step above which no further step is measured."""
TOTAL = 3.0
"""Seconds after which no further bundle is measured."""
SAMPLE = 8
"""The most runs that are measured as one vectorized program."""


@dataclass
class Forecast:
    """The expected time of some runs, and how they are trained. Rows are named as in `RunSpec.row`."""

    of_run: dict[str, float] = field(default_factory=dict)
    """Seconds of training and evaluation of a run of each measured row, on one thread."""
    unmeasured: list[str] = field(default_factory=list)
    """The rows that were not measured in time; see `seconds_of`."""
    failing: dict[str, str] = field(default_factory=dict)
    """Why the first steps of a row fail."""
    alone: dict[str, str] = field(default_factory=dict)
    """Why the runs of a row are trained one at a time."""

    def seconds_of(self, spec: RunSpec, otherwise: float = 0.0) -> float:
        """Seconds of a run: those of its row, else the mean of the measured rows, else `otherwise`."""
        mean = sum(self.of_run.values()) / len(self.of_run) if self.of_run else otherwise
        return self.of_run.get(spec.row, mean)


def forecast(
    specs: Sequence[RunSpec],
    settings: TrainSettings,
    progress: Callable[[str, float], None] = lambda row, share: None,
) -> Forecast:
    """Measure a few steps and an evaluation of a bundle of every row, then of further bundles, on the CPU.

    No measurement starts after `TOTAL` seconds. `progress` is called with the row that is measured next and
    the share of the work that is done.
    """
    from oodbench.algorithms import algorithms
    from oodbench.networks.base import networks
    from oodbench.train.process import clean_process

    rows: dict[str, dict[tuple[str, ...], list[RunSpec]]] = {}
    for spec in specs:
        if spec.precision == "tf32":  # needs hardware that CPUs lack
            spec = replace(spec, precision="float32")
        rows.setdefault(spec.row, {}).setdefault(spec.bundle_key, []).append(spec)
    rng = random.Random(0)
    queues = [[(row, b) for b in rng.sample([*of.values()], len(of))] for row, of in rows.items()]
    rng.shuffle(queues)  # the rows that are measured in time are a fair sample
    # a bundle of each row, then a second bundle
    turns = [turn for turns in zip_longest(*queues) for turn in turns if turn]
    result, alone = Forecast(), dict[str, str]()
    seconds, runs = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0)
    start = time.perf_counter()
    for done, (row, bundle) in enumerate(turns):
        passed = time.perf_counter() - start
        if passed > TOTAL:
            break
        progress(row, max(done / len(turns), passed / TOTAL))
        try:
            with clean_process(settings.threads):
                taken, reason = _measure(bundle, settings)
        except Exception as error:  # a method, a network or a dataset may raise anything
            step = f"a step of {definition(algorithms.get(bundle[0].algorithm))}"
            if not is_engine((network := networks.get(bundle[0].network)).__module__):
                step += f" with the network {definition(network)}"
            why = str(error) if isinstance(error, UserError) else described(error, step)
            result.failing.setdefault(row, why)
            continue
        seconds[row] += taken
        runs[row] += len(bundle)
        if reason is not None:
            alone[row] = reason
    result.alone = {row: alone[row] for row in rows if row in alone}
    result.of_run = {row: seconds[row] / runs[row] for row in rows if runs[row]}
    result.unmeasured = [row for row in rows if not runs[row] and row not in result.failing]
    return result


def _measure(bundle: Sequence[RunSpec], settings: TrainSettings) -> tuple[float, str | None]:
    """The seconds of a bundle, and why its runs are trained one at a time, if they are."""
    from oodbench.train import vectorized
    from oodbench.train.loop import Program
    from oodbench.train.run import Run

    run = Run(bundle[0], settings)
    reason = vectorized.why_alone(run)
    if reason is None:
        try:
            several = [run, *(Run(spec, settings) for spec in bundle[1:SAMPLE])]
            key = vectorized.program_key
            alike = [each for each in several if key(each) == key(run)]
            return _seconds(vectorized.VectorizedProgram(alike), bundle), None
        except Exception as error:  # a launch trains these runs one at a time, too
            reason = vectorized.explained(error) or described(error)
            run = Run(bundle[0], settings)
    return _seconds(Program([run]), bundle), reason


def _seconds(program: "Program", bundle: Sequence[RunSpec]) -> float:
    steps = bundle[0].steps
    step = _timed_steps(program, 1)
    if step < SLOW_STEP and steps > 1:  # the first step is slower than the rest
        step = _timed_steps(program, steps - 1)
    evaluations = sum(len(spec.due()) for spec in bundle)
    of_steps = sum(spec.steps for spec in bundle) * step / len(program.runs)
    return of_steps + evaluations * _evaluation(program)


def _timed_steps(program: "Program", most: int) -> float:
    start, steps = time.perf_counter(), 0
    while steps < most and (not steps or time.perf_counter() - start < BUDGET):
        program.run_steps(1)
        steps += 1
    return (time.perf_counter() - start) / steps


def _evaluation(program: "Program") -> float:
    """The seconds of an evaluation of one run, extrapolated if it takes long."""
    import torch

    from oodbench.train.evaluate import predictions

    start = time.perf_counter()
    run, *others = program.runs
    if others:
        program.evaluate(range(len(program.runs)))
        return (time.perf_counter() - start) / len(program.runs)
    run.algorithm.eval()
    examples = 0
    with torch.no_grad():
        for *_, y in predictions(run.predict, run.scored):
            examples += len(y)
            if time.perf_counter() - start > BUDGET:
                break
    whole = sum(len(environment.y) for environment in run.scored.environments.values())
    return (time.perf_counter() - start) * whole / max(1, examples)
