"""The cost of commands besides training."""

import itertools
import random
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from oodbench.results.directory import Directory, compact
from oodbench.results.run_spec import State
from oodbench.results.schemas import whole_lines
from oodbench.sweep.plan import single
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.bench import Row
from tests.helpers.results.made import Made

EVALUATIONS = 20


def command_seconds(*arguments: str | Path) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def run_rows(folder: Path) -> list[Row]:
    """The seconds of one more run besides training and evaluation, and of the command `status`."""
    costs = []
    for trial in range(10):
        run = single({"name": "Spirals"}, {"name": "ERM"}, steps=20, trials=[trial])
        directory = Directory(folder / "cost").run(run.id)
        start = time.perf_counter()
        execute(run, directory, TrainSettings())
        total = time.perf_counter() - start
        work = whole_lines(directory.read("metrics.jsonl") or b"")
        evaluation = sum(c["evaluation_seconds"] for c in work)
        costs.append(total - work[-1]["training_seconds"] - evaluation)
    what = "one more run beyond training and evaluation, s"
    return [Row(what, "<= 0.1", f"{statistics.median(costs):.3f}", "5.5"), *ended_rows(folder)]


def ended_rows(folder: Path, count: int = 1000) -> list[Row]:
    """Seconds of the command `status` on ended runs in folders, and of moving them into the tables."""
    base = single({"name": "Spirals"}, {"name": "ERM"})
    runs = {run.id: run for run in (replace(base, trial=trial) for trial in range(count))}
    results = Directory(folder / "status")
    for run in runs.values():
        directory = results.run(run.id)
        directory.path.mkdir(parents=True)
        directory.start(run, {}, {})
        directory.finish(State.DONE, 1)
    results.write_plan("bench", {}, [*runs.values()])
    command = ("oodbench.sweep", "status", results.path)
    seconds = [command_seconds(*command) for _ in range(5)]
    start = time.perf_counter()
    compact(results)
    moving = time.perf_counter() - start
    return [
        Row(f"status on {count} finished runs, s", "<= 2", f"{statistics.median(seconds):.2f}"),
        Row(f"moving {count} ended runs into the tables, s", "<= 5", f"{moving:.2f}"),
    ]


class Sweep(Made):
    """Runs of which an evaluation has 16 values."""

    environments = tuple("ABCDEFGH")
    name = "bench"


def write_sweep(path: Path, count: int) -> None:
    """A results directory with `count` ended runs, at most 5,000, of 20 evaluations of 16 values each."""
    generator, made = random.Random(0), Sweep(path)
    keys = itertools.product(range(5), range(5), range(5), range(10), "ABCD")
    for draw, trial, dataset, label, test in itertools.islice(keys, count):
        names = (f"Dataset{dataset}", f"Method{label}", (test,))
        steps = range(100, 100 * EVALUATIONS + 1, 100)
        made.add(*names, trial, lambda *place: generator.random(), draw=draw, steps=steps)
    made.write_plan()


def table_rows(folder: Path, count: int = 5_000) -> list[Row]:
    """Seconds of `report table` and `report html`, the page's size, and the memory that reading takes."""
    write_sweep(folder, count)
    table = min(command_seconds("oodbench.report", "table", folder) for _ in range(3))
    page = command_seconds("oodbench.report", "html", folder)
    size = (folder / "report.html").stat().st_size / 1e6
    what = f"on {count:,} runs x {EVALUATIONS} evaluations"
    return [
        Row(f"report table {what}, s", "<= 2.5", f"{table:.2f}"),
        Row(f"report html {what}, s", "<= 10", f"{page:.1f}"),
        Row(f"report html {what}, MB", "<= 5", f"{size:.1f}"),
        memory_row(folder),
    ]


def memory_row(folder: Path) -> Row:
    """Peak memory of loading and selecting: that of the program, and 100,000 times that of a run."""
    code = (
        "import resource, sys; from pathlib import Path; from oodbench.results.directory import Directory;"
        "import pyarrow.compute, pyarrow.ipc; from oodbench.selection.judge import choose;"
        "from oodbench.results.read import read_results;"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; base = peak();"
        "f = read_results(Directory(Path(sys.argv[1]))); choose(f); print(len(f.runs), base, peak())"
    )
    command = [sys.executable, "-c", code, str(folder)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    runs, base, peak = map(int, printed.split())
    gigabytes = (base + (peak - base) / runs * 100_000) / 2**20
    return Row(f"memory of 100,000 runs, from that of {runs}, GB", "<= 4", f"{gigabytes:.1f}")
