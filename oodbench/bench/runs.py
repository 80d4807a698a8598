"""What a run and a command cost beside training."""

import statistics
import time
from dataclasses import replace
from pathlib import Path

from oodbench.bench.rows import Row
from oodbench.bench.tables import command_seconds
from oodbench.results.directory import Results
from oodbench.results.run_spec import State
from oodbench.sweep.plan import single
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings


def run_cost(directory: Path) -> Row:
    """Seconds of one more run of a sweep, less its training and evaluation."""
    costs = []
    for trial in range(10):
        run = single({"name": "Spirals"}, {"name": "ERM"}, steps=20, trials=[trial])
        target = Results(directory).run(run.id)
        start = time.perf_counter()
        execute(run, target, TrainSettings())
        total = time.perf_counter() - start
        work = [r["cost"] for r in target.records()]
        evaluation = sum(c["evaluation_seconds"] for c in work)
        costs.append(total - work[-1]["training_seconds"] - evaluation)
    return Row(
        what="one more run beyond training and evaluation, s",
        reach="<= 0.1",
        measured=f"{statistics.median(costs):.3f}",
        domainbed="5.5",
    )


def status_time(directory: Path, count: int = 1000) -> Row:
    """Seconds of the command `status` on finished runs."""
    base = single({"name": "Spirals"}, {"name": "ERM"})
    runs = {}
    results = Results(directory)
    for trial in range(count):
        run = replace(base, trial=trial)
        runs[run.id] = run
        target = results.run(run.id)
        target.path.mkdir(parents=True)
        target.start(run, {}, {})
        target.finish(State.DONE, 1, 1.0)
    results.write_plan("bench", {}, runs)
    command = ("oodbench.sweep", "status", "--out", directory)
    seconds = [command_seconds(*command) for _ in range(5)]
    return Row(
        what=f"status on {count} finished runs, s",
        reach="<= 2",
        measured=f"{statistics.median(seconds):.2f}",
    )
