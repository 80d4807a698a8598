"""What the harness costs: ratios measured in one process, on one thread, as medians."""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tabulate import tabulate

from oodbench.allocator import keep_freed_memory
from oodbench.bench_report import coverages, memory, table_time
from oodbench.plan import make_plan, validate
from oodbench.records import Results, RunSpec
from oodbench.train import Run, Settings, execute

Row = tuple[str, str, str, str]
ROUNDS = 15


def spec(
    algorithm: str, batch_size: int, dataset: str = "Spirals", steps: int = 100_000
) -> RunSpec:
    """One run with a batch size of its own."""
    entry = {"name": algorithm, "hparams": {"batch_size": batch_size}}
    values = {"name": "bench", "datasets": [dataset], "algorithms": [entry], "trials": 1}
    return next(iter(make_plan(validate(values | {"steps": steps}, "bench")).runs.values()))


def paired(works: Sequence[Callable[[], object]], repeat: int) -> list[float]:
    """Median seconds of each work, measured in turn, A B A B ..., so that drifts hit all alike."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for work, seconds in zip(works, times, strict=True):
            start = time.perf_counter()
            for _ in range(repeat):
                work()
            seconds.append((time.perf_counter() - start) / repeat)
    return [statistics.median(seconds) for seconds in times]


def updates(algorithm: str, batch_size: int) -> Callable[[], object]:
    """The update step of an algorithm, on batches made beforehand and past its annealing."""
    run = Run(spec(algorithm, batch_size), Settings())
    batches = itertools.cycle([run.batches[i] for i in range(4)])
    steps = itertools.count(1000)
    run.algorithm.train()

    def work() -> None:
        run.algorithm.update(next(batches), next(steps))

    for _ in range(5):
        work()
    return work


def step_ratios() -> list[Row]:
    """Update steps against ERM's, and the making of a batch against a step."""
    rows = []
    for algorithms, size, reach, peer in (
        (("IRM", "VREx"), 32, 1.15, {"IRM": "2.59", "VREx": "1.26"}),
        (("DANN",), 256, 1.6, {"DANN": "3.17"}),
    ):
        works = [updates(name, size) for name in ("ERM", *algorithms)]
        erm, *others = paired(works, 20 if size == 32 else 2)
        for name, seconds in zip(algorithms, others, strict=True):
            work = f"update step, {name} / ERM at 16 environments x {size}"
            rows.append((work, f"<= {reach}", f"{seconds / erm:.2f}", peer[name]))
    run = Run(spec("ERM", 256), Settings())
    steps = itertools.count()
    batch, step = paired([lambda: run.batches[next(steps)], updates("ERM", 256)], 6)
    rows.append(("making a batch / ERM step at 16 x 256", "<= 0.05", f"{batch / step:.3f}", "0.57"))
    return rows


def run_cost(directory: Path) -> Row:
    """CPU seconds of one more run of a sweep, less its training and evaluation."""
    costs = []
    for trial in range(10):
        values = {"name": "b", "datasets": ["Spirals"], "algorithms": ["ERM"], "trials": [trial]}
        run = next(iter(make_plan(validate(values | {"steps": 20}, "bench")).runs.values()))
        target = Results(directory).run(run.id)
        start = time.process_time()
        execute(run, target, Settings())
        total = time.process_time() - start
        work = [r["cost"] for r in target.records()]
        evaluation = sum(c["evaluation_seconds"] for c in work)
        costs.append(total - work[-1]["training_seconds"] - evaluation)
    return (
        "one more run beyond training and evaluation, CPU s",
        "<= 0.1",
        f"{statistics.median(costs):.3f}",
        "5.5",
    )


def status_time(directory: Path, count: int = 1000) -> Row:
    """Seconds of the command `status` on finished runs."""
    base = spec("ERM", 256)
    runs = {}
    results = Results(directory)
    for trial in range(count):
        run = RunSpec(**{**base.__dict__, "trial": trial})
        runs[run.id] = run
        target = results.run(run.id)
        target.path.mkdir(parents=True)
        target.start(run, {}, {})
        target.finish("done", 1, 1.0)
    results.write_plan("bench", {}, runs)
    command = [sys.executable, "-m", "oodbench.sweep", "status", "--out", str(directory)]
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    return (f"status on {count} finished runs, s", "<= 2", f"{statistics.median(seconds):.2f}", "-")


def main() -> None:
    """Measure everything and print one table."""
    keep_freed_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = step_ratios()
        rows.append(run_cost(Path(folder) / "cost"))
        rows.append(status_time(Path(folder) / "status"))
        rows += table_time(Path(folder) / "tables")
        rows.append(memory(Path(folder) / "tables"))
    rows += coverages()
    print(tabulate(rows, ["what", "reach", "measured", "DomainBed"], disable_numparse=True))


if __name__ == "__main__":
    main()
