"""A forecast of how a sweep is trained and for how long, from a few measured steps of its runs."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from oodbench.errors import UserError
from oodbench.results.run_spec import RunSpec
from oodbench.train.settings import TrainSettings

if TYPE_CHECKING:
    from oodbench.train.loop import Program
    from oodbench.train.run import Run

BUDGET = 0.05
"""Seconds for which the updates of a bundle are measured, and as many for its evaluation."""
SLOW_STEP = 0.5
"""Seconds of a first step above which no further step is measured: it stands for all."""
TOTAL = 20.0
"""Seconds after which no further bundle is measured."""
SAMPLE = 8
"""The number of runs that are measured as one program where runs are vectorized."""


@dataclass
class Forecast:
    """The expected time of some runs, and how they are trained."""

    seconds: float = 0.0
    """Seconds of training and evaluation of all runs on one thread."""
    unmeasured: list[str] = field(default_factory=list)
    """The rows that were not measured in time; they are assumed to cost what the others do."""
    failing: dict[str, str] = field(default_factory=dict)
    """Why the first steps of a row fail, by its name; its runs do not count."""
    of_run: dict[str, float] = field(default_factory=dict)
    """Seconds of a run of each row that was measured."""
    alone: dict[str, str] = field(default_factory=dict)
    """The reason why runs are trained one at a time, by their row, `LABEL on DATASET`."""

    def seconds_of(self, spec: RunSpec, otherwise: float) -> float:
        """Seconds of a run: its row's, or the mean of all rows, or `otherwise` if nothing was measured."""
        mean = sum(self.of_run.values()) / len(self.of_run) if self.of_run else otherwise
        return self.of_run.get(row_of(spec), mean)


def row_of(spec: RunSpec) -> str:
    """The name of the row of a run."""
    return f"{spec.label} on {spec.dataset_name}"


def forecast(
    specs: Sequence[RunSpec],
    settings: TrainSettings,
    progress: Callable[[str, float], None] = lambda row, share: None,
) -> Forecast:
    """Measure a few steps and an evaluation of a bundle of every row, then of further bundles, on the CPU.

    Starts no measurement after `TOTAL` seconds. Unmeasured runs are assumed to cost the mean of the
    measured runs in their row, or in all rows if theirs has none. `progress` is called with the row that is
    measured next and the share of the work that is done.
    """
    from oodbench.train.process import clean_process

    rows = _bundles(specs)
    turns = _turns(rows)
    result = Forecast()
    measured: dict[str, list[tuple[float, int]]] = {row: [] for row in rows}
    start = time.perf_counter()
    for done, (row, bundle) in enumerate(turns):
        passed = time.perf_counter() - start
        if passed > TOTAL:
            break
        progress(row, max(done / len(turns), passed / TOTAL))
        try:
            with clean_process(settings.threads):
                seconds, reason = _measure(bundle, settings)
        except Exception as error:  # a method, a network or a dataset may raise anything
            result.failing.setdefault(row, _sentence(error, bundle[0]))
            continue
        measured[row].append((seconds, len(bundle)))
        if reason is not None:
            result.alone[row] = reason
    result.of_run = {row: _of_run(pairs) for row, pairs in measured.items() if pairs}
    left = rows.keys() - result.failing.keys()
    if everything := [pair for pairs in measured.values() for pair in pairs]:
        usual = _of_run(everything)
        runs = {row: sum(map(len, rows[row])) for row in rows if row in left}
        result.seconds = sum(n * result.of_run.get(row, usual) for row, n in runs.items())
    result.unmeasured = [row for row in rows if row in left and row not in result.of_run]
    return result


def _of_run(pairs: Sequence[tuple[float, int]]) -> float:
    return sum(seconds for seconds, _ in pairs) / sum(runs for _, runs in pairs)


def _bundles(specs: Sequence[RunSpec]) -> dict[str, list[list[RunSpec]]]:
    """The bundles of runs of each row, by its name."""
    rows: dict[str, dict[tuple[str, ...], list[RunSpec]]] = {}
    for spec in specs:
        if spec.precision == "tf32":  # which no CPU has
            spec = replace(spec, precision="float32")
        rows.setdefault(row_of(spec), {}).setdefault(spec.bundle_key, []).append(spec)
    return {row: [*by_key.values()] for row, by_key in rows.items()}


def _turns(rows: Mapping[str, list[list[RunSpec]]]) -> list[tuple[str, list[RunSpec]]]:
    """Round-robin over rows: a random bundle of each, then the next."""
    rng = random.Random(0)
    queues = [[(row, b) for b in rng.sample(bs, len(bs))] for row, bs in rows.items()]
    return [turn for turns in zip_longest(*queues) for turn in turns if turn]


def _sentence(error: Exception, spec: RunSpec) -> str:
    from oodbench.algorithms import algorithms
    from oodbench.errors import definition, described

    if isinstance(error, UserError):
        return str(error)
    method = definition(algorithms.get(spec.algorithm))
    return described(error, f"a step of {method}")


def _measure(bundle: Sequence[RunSpec], settings: TrainSettings) -> tuple[float, str | None]:
    """The seconds of a bundle, and the reason why its runs are trained one at a time if they are."""
    from oodbench.errors import described
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
            return _seconds(vectorized.VectorizedProgram(alike), alike, bundle), None
        except Exception as error:  # a launch trains these runs one at a time, too
            reason = vectorized.explained(error) or described(error)
            run = Run(bundle[0], settings)
    return _seconds(Program([run]), [run], bundle), reason


def _seconds(program: "Program", runs: "Sequence[Run]", bundle: Sequence[RunSpec]) -> float:
    steps = bundle[0].steps
    step = _timed_steps(program, 1)
    if step < SLOW_STEP and steps > 1:  # the first step is slower than the rest
        step = _timed_steps(program, steps - 1)
    evaluations = sum(len(spec.due()) for spec in bundle)
    of_steps = sum(spec.steps for spec in bundle) * step / len(runs)
    return of_steps + evaluations * _evaluation(program, runs)


def _timed_steps(program: "Program", most: int) -> float:
    start, steps = time.perf_counter(), 0
    while steps < most and (not steps or time.perf_counter() - start < BUDGET):
        program.run_steps(1)
        steps += 1
    return (time.perf_counter() - start) / steps


def _evaluation(program: "Program", runs: "Sequence[Run]") -> float:
    """The seconds of an evaluation of one run, from the first predictions if it takes long."""
    import torch

    from oodbench.train.evaluate import predictions

    start = time.perf_counter()
    if len(runs) > 1:
        program.evaluate(range(len(runs)))
        return (time.perf_counter() - start) / len(runs)
    (run,) = runs
    run.algorithm.eval()
    examples = 0
    with torch.no_grad():
        for *_, y in predictions(run.predict, run.scored, run.problem.task, run.loader_workers):
            examples += len(y)
            if time.perf_counter() - start > BUDGET:
                break
    whole = sum(len(environment.y) for environment in run.scored.values())
    return (time.perf_counter() - start) * whole / max(1, examples)
