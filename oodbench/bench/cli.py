"""What the harness costs: ratios measured in one process, on one thread, as medians."""

import itertools
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from oodbench.algorithms import Algorithm, Batch, Problem, algorithms
from oodbench.bench.data import loading, making
from oodbench.bench.tables import coverages, memory, page_cost, table_time
from oodbench.bench.vectorized import vectorized
from oodbench.networks.base import build
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.tasks import Task
from oodbench.train.execute import execute
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

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
    run = Run(spec(algorithm, batch_size), TrainSettings())
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
    for names, size, reach, peer in (
        (("IRM", "VREx"), 32, 1.15, {"IRM": "2.59", "VREx": "1.26"}),
        (("DANN",), 256, 1.6, {"DANN": "3.17"}),
    ):
        works = [updates(name, size) for name in ("ERM", *names)]
        erm, *others = paired(works, 20 if size == 32 else 2)
        for name, seconds in zip(names, others, strict=True):
            work = f"update step, {name} / ERM at 16 environments x {size}"
            rows.append((work, f"<= {reach}", f"{seconds / erm:.2f}", peer[name]))
    run = Run(spec("ERM", 256), TrainSettings())
    steps = itertools.count()
    batch, step = paired([lambda: run.batches[next(steps)], updates("ERM", 256)], 6)
    rows.append(("making a batch / ERM step at 16 x 256", "<= 0.05", f"{batch / step:.3f}", "0.57"))
    return rows


def on_random_data(
    algorithm: str,
    network: str,
    shape: tuple[int, ...],
    size: tuple[int, int],
    device: str = "cpu",
    **values: object,
) -> tuple[Algorithm, Batch]:
    """An algorithm and a batch of E environments of B random examples, `size` = (E, B)."""
    classes = 1 if network == "MLP" else 10
    task = Task("multiclass" if classes > 1 else "binary", classes)
    hidden = {"depth": 3, "activation": "leaky_relu"} if network == "MLP" else {}
    cls: Any = algorithms.get(algorithm)
    problem = Problem(shape, task, tuple(f"e{i}" for i in range(size[0])), 100)
    built = cls(build(network, hidden, shape, classes, 0), problem, cls.Hparams(**values))
    built = built.to(device)
    built.optimizers = built.configure()
    y = torch.randint(max(2, classes), size, device=device)
    return built, Batch(torch.randn(*size, *shape, device=device), y if classes > 1 else y.float())


def random_updates(algorithm: Algorithm, batch: Batch) -> Callable[[], object]:
    """The update step of an algorithm on a batch, to its end on the device."""

    def work() -> None:
        algorithm.update(batch, 0)
        if batch.x.is_cuda:
            torch.cuda.synchronize(batch.x.device)

    for _ in range(3):
        work()
    return work


def mask_ratios() -> list[Row]:
    """Update steps of AND-mask, over environments and over examples, against ERM's."""
    rows = []
    cases: list[tuple[str, str, tuple[int, ...], tuple[int, int], str, str]] = [
        ("ANDMask", "MLP", (18,), (16, 256), "<= 1.15", "1.34"),
        ("ANDMask", "MLP", (18,), (16, 32), "<= 1.5", "4.22"),
        ("ANDMask", "MLP", (18,), (64, 16), "<= 2", "-"),
        ("ExampleANDMask", "MLP", (18,), (1, 128), "<= 1.4", "-"),
        ("ExampleANDMask", "MLP", (18,), (1, 1024), "<= 1.4", "-"),
        ("ExampleANDMask", "ConvNet", (3, 32, 32), (1, 80), "<= 4", "-"),
    ]
    for name, network, shape, size, reach, peer in cases:
        works = [random_updates(*on_random_data(n, network, shape, size)) for n in ("ERM", name)]
        erm, seconds = paired(works, 1 if network == "ConvNet" else max(1, 4096 // math.prod(size)))
        work = f"update step, {name} / ERM, {network} at {size[0]} x {size[1]}"
        rows.append((work, reach, f"{seconds / erm:.2f}", peer))
    return rows


def ragged_ratio(width: int = 390) -> Row:
    """Forward and backward of Colored MNIST's network: of torch's linear layers over ours."""
    ours, plain = (build("MLP", {"width": width, "depth": 2}, (392,), 1, 0) for _ in range(2))
    for module in plain.modules():
        if isinstance(module, nn.Linear):
            module.__class__ = nn.Linear
    x = torch.randn(4000, 392)
    seconds = paired([lambda: plain(x).sum().backward(), lambda: ours(x).sum().backward()], 3)
    what = f"a pass of 2 layers of {width} units on {len(x)} examples, torch's layers / ours"
    return (what, ">= 1.2", f"{seconds[0] / seconds[1]:.2f}", "-")


def looped(algorithm: Algorithm, batch: Batch) -> None:
    """A backward pass through the whole batch for each example, as arXiv:2009.00329's code does it."""
    parameters = list(algorithm.network.parameters())
    for loss in algorithm.outputs(batch, 0).losses.flatten():
        torch.autograd.grad(loss, parameters, retain_graph=True)


def device_ratios(device: str = "cuda", network: str = "FastResNet") -> list[Row]:
    """The per-example AND-mask at 1 x 80 on a GPU: time and memory; `coupled` against the loop."""
    shape, size = (3, 32, 32), (1, 80)
    works, peaks = [], []
    for name in ("ERM", "ExampleANDMask"):
        works.append(random_updates(*on_random_data(name, network, shape, size, device)))
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        works[-1]()
        peaks.append(torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0)
    erm, masked = paired(works, 1)
    built = on_random_data("ExampleANDMask", network, shape, size, device, batch_norm="coupled")

    def loop() -> None:
        looped(*built)
        if device == "cuda":
            torch.cuda.synchronize()

    coupled, loops = paired([random_updates(*built), loop], 1)
    what = f"{network} at 1 x 80, {device}"
    return [
        (f"update step, ExampleANDMask / ERM, {what}", "<= 4", f"{masked / erm:.2f}", "-"),
        (f"its memory above ERM's, {what}, GB", "<= 2", f"{peaks[1] - peaks[0]:.2f}", "-"),
        (f"coupled / 80 backward passes, {what}", "<= 0.5", f"{coupled / loops:.2f}", "-"),
    ]


def run_cost(directory: Path) -> Row:
    """Seconds of one more run of a sweep, less its training and evaluation."""
    costs = []
    for trial in range(10):
        values = {"name": "b", "datasets": ["Spirals"], "algorithms": ["ERM"], "trials": [trial]}
        run = next(iter(make_plan(validate(values | {"steps": 20}, "bench")).runs.values()))
        target = Results(directory).run(run.id)
        start = time.perf_counter()
        execute(run, target, TrainSettings())
        total = time.perf_counter() - start
        work = [r["cost"] for r in target.records()]
        evaluation = sum(c["evaluation_seconds"] for c in work)
        costs.append(total - work[-1]["training_seconds"] - evaluation)
    return (
        "one more run beyond training and evaluation, s",
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
        target.finish(State.DONE, 1, 1.0)
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
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [*step_ratios(), *mask_ratios(), ragged_ratio()]
        if torch.cuda.is_available():
            rows += device_ratios()
        rows.append(run_cost(Path(folder) / "cost"))
        rows.append(status_time(Path(folder) / "status"))
        rows += table_time(Path(folder) / "tables")
        rows += page_cost(Path(folder) / "tables")
        rows.append(memory(Path(folder) / "tables"))
        rows += loading(Path(folder))
        rows += vectorized(Path(folder) / "vectorized")
        rows += making(Path(folder) / "coinrun")
    rows += coverages()
    print(tabulate(rows, ["what", "reach", "measured", "DomainBed"], disable_numparse=True))
