"""Update steps against ERM's, as medians of rounds in which all are measured in turn."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oodbench.algorithms import Algorithm, Batch, Problem, algorithms
from oodbench.bench.rows import Row
from oodbench.networks.base import build
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

ROUNDS = 15
STEP = 1000
"""The first step that is measured, past the annealing of most methods."""
STEPS = 100_000
WINDOW = 30
"""Steps between two evaluations: a twentieth of a run on Spirals."""


def paired(
    works: Sequence[Callable[[], object]],
    repeat: int,
    clock: Callable[[], float] = time.process_time,
    rounds: int = ROUNDS,
) -> list[float]:
    """Median seconds of each work by a clock, measured A B A B ..., so that drifts hit all alike."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, seconds in zip(works, times, strict=True):
            start = clock()
            for _ in range(repeat):
                work()
            seconds.append((clock() - start) / repeat)
    return [statistics.median(seconds) for seconds in times]


def run_on_spirals(algorithm: str, batch_size: int, average: str = "none") -> Run:
    """A run in memory, on 16 environments, with a batch size of its own."""
    entry = {"name": algorithm, "average": average, "hparams": {"batch_size": batch_size}}
    every = {"evaluate_every": WINDOW}
    return Run(single({"name": "Spirals"}, entry, steps=STEPS, **every), TrainSettings())


def updates(algorithm: str, batch_size: int) -> Callable[[], object]:
    """The update step of an algorithm, on batches made beforehand and past its annealing."""
    run = run_on_spirals(algorithm, batch_size)
    batches = itertools.cycle([run.batches[i] for i in range(4)])
    steps = itertools.count(STEP)
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
            rows.append(
                Row(
                    what=f"update step, {name} / ERM at 16 environments x {size}",
                    reach=f"<= {reach}",
                    measured=f"{seconds / erm:.2f}",
                    domainbed=peer[name],
                )
            )
    run = run_on_spirals("ERM", 256)
    steps = itertools.count()
    batch, step = paired([lambda: run.batches[next(steps)], updates("ERM", 256)], 6)
    rows.append(
        Row(
            what="making a batch / ERM step at 16 x 256",
            reach="<= 0.05",
            measured=f"{batch / step:.3f}",
            domainbed="0.57",
        )
    )
    return [*rows, evaluation_ratio()]


def evaluation_ratio() -> Row:
    """An evaluation of all splits against nothing but the network on the same examples."""
    run = run_on_spirals("ERM", 32)
    run.algorithm.eval()

    @torch.no_grad()
    def forward() -> None:
        for environment in run.scored.values():
            run.predict(environment.x)

    evaluation, alone = paired([run.evaluate, forward], 4)
    examples = sum(len(environment.y) for environment in run.scored.values())
    return Row(
        what=f"evaluation / logits alone of {len(run.scored)} environments, {examples} examples",
        reach="<= 1.5",
        measured=f"{evaluation / alone:.2f}",
    )


def windows(average: str, batch_size: int) -> Callable[[], object]:
    """The updates between two evaluations with what an average adds to them and to the second one."""
    run = run_on_spirals("ERM", batch_size, average)

    def work() -> None:
        run.run_steps(WINDOW)
        run.validate()

    for _ in range(4):
        work()
    return work


def average_ratios() -> list[Row]:
    """What averages of the weights add to the steps."""
    rows = []
    for size in (32, 256):
        names = ("none", "ema", "swa", "swad")
        plain, *others = paired([windows(name, size) for name in names], 1)
        for name, seconds in zip(names[1:], others, strict=True):
            what = f"{WINDOW} steps, ERM + {name} / ERM at 16 environments x {size}"
            reach = "<= 1.1" if name == "swad" else "<= 1.05"
            rows.append(Row(what=what, reach=reach, measured=f"{seconds / plain:.3f}"))
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
    hidden: dict[str, Any] = {"weights": "none"} if network.startswith("ResNet") else {}
    if network == "MLP":
        hidden = {"depth": 3, "activation": "leaky_relu"}
    cls: Any = algorithms.get(algorithm)
    names = tuple(f"e{i}" for i in range(size[0]))
    sizes = (size[1],) * size[0]
    problem = Problem(shape, task, names, STEPS, attributes=2, sizes=sizes)
    built = cls(build(network, hidden, shape, classes, 0), problem, cls.Hparams(**values))
    built = built.to(device)
    built.optimizers = built.configure()
    y = torch.randint(max(2, classes), size, device=device)
    index = torch.arange(size[1], device=device).expand(size)
    attributes = torch.randint(2, size, device=device)
    x = torch.randn(*size, *shape, device=device)
    views = torch.randn(*size, cls.views, *shape, device=device) if cls.views else None
    y = y if classes > 1 else y.float()
    return built, Batch(x, y, index=index, attributes=attributes, views=views)


def random_updates(algorithm: Algorithm, batch: Batch) -> Callable[[], object]:
    """The update step of an algorithm on a batch, to its end on the device."""
    steps = itertools.count(STEP)

    def work() -> None:
        algorithm.update(batch, next(steps))
        if batch.x.is_cuda:
            torch.cuda.synchronize(batch.x.device)

    for _ in range(3):
        work()
    return work


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """A method whose update step is measured against ERM's on E x B random examples."""

    algorithm: str
    size: tuple[int, int]
    """E environments of B examples, (E, B)."""
    network: str = "MLP"
    shape: tuple[int, ...] = (18,)
    reach: str
    domainbed: str = "-"


CASES = (
    StepCase(algorithm="ANDMask", size=(16, 256), reach="<= 1.15", domainbed="1.34"),
    StepCase(algorithm="ANDMask", size=(16, 32), reach="<= 1.5", domainbed="4.22"),
    StepCase(algorithm="ANDMask", size=(64, 16), reach="<= 2"),
    StepCase(algorithm="ExampleANDMask", size=(1, 128), reach="<= 1.4"),
    StepCase(algorithm="ExampleANDMask", size=(1, 1024), reach="<= 1.4"),
    StepCase(
        algorithm="ExampleANDMask", size=(1, 80), reach="<= 4", network="ConvNet", shape=(3, 32, 32)
    ),
    StepCase(
        algorithm="CutMix", size=(4, 20), reach="<= 1.2", network="ConvNet", shape=(3, 32, 32)
    ),
    StepCase(algorithm="Mixup", size=(4, 20), reach="<= 1.2", network="ConvNet", shape=(3, 32, 32)),
)


def case_ratios() -> list[Row]:
    """Update steps of AND-mask, over environments and over examples, and of mixed images, against ERM's."""
    rows = []
    for case in CASES:
        given, (environments, examples) = (case.network, case.shape, case.size), case.size
        works = [random_updates(*on_random_data(n, *given)) for n in ("ERM", case.algorithm)]
        rounds = 1 if case.network == "ConvNet" else max(1, 4096 // math.prod(case.size))
        erm, seconds = paired(works, rounds)
        what = f"{case.algorithm} / ERM, {case.network} at {environments} x {examples}"
        row = Row(
            what=f"update step, {what}",
            reach=case.reach,
            measured=f"{seconds / erm:.2f}",
            domainbed=case.domainbed,
        )
        rows.append(row)
    return rows


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
    erm, masked = paired(works, 1, time.perf_counter)
    built = on_random_data("ExampleANDMask", network, shape, size, device, batch_norm="coupled")

    def loop() -> None:
        looped(*built)
        if device == "cuda":
            torch.cuda.synchronize()

    coupled, loops = paired([random_updates(*built), loop], 1, time.perf_counter)
    what = f"{network} at 1 x 80, {device}"
    found = {
        f"update step, ExampleANDMask / ERM, {what}": ("<= 4", masked / erm),
        f"its memory above ERM's, {what}, GB": ("<= 2", peaks[1] - peaks[0]),
        f"coupled / 80 backward passes, {what}": ("<= 0.5", coupled / loops),
    }
    return [Row(what=k, reach=reach, measured=f"{v:.2f}") for k, (reach, v) in found.items()]
