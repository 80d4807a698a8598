"""Update steps of methods against ERM's, as medians of rounds in which all are measured in turn."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from oodbench.adaptations import Stream, adaptations, adapted, in_batches
from oodbench.algorithms import Algorithm, Batch, Problem, algorithms, why_skipped
from oodbench.networks.base import build
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.bench import Row, paired
from tests.helpers.algorithms.ours import ours

STEP = 1000
"""The first step that is measured, past the annealing of most methods."""
STEPS = 100_000

MLP, CONVNET = ("MLP", (18,)), ("ConvNet", (3, 32, 32))
CASES: tuple[tuple[str, tuple[str, tuple[int, ...]], tuple[int, int], float, str], ...] = (
    ("ANDMask", MLP, (16, 256), 1.15, "1.34"),
    ("ANDMask", MLP, (16, 32), 1.5, "4.22"),
    ("ANDMask", MLP, (64, 16), 2, "-"),
    ("DANN", MLP, (16, 256), 1.6, "3.17"),
    ("ExampleANDMask", MLP, (1, 128), 1.4, "-"),
    ("ExampleANDMask", MLP, (1, 1024), 1.4, "-"),
    ("ExampleANDMask", CONVNET, (1, 80), 4, "-"),
    ("CutMix", CONVNET, (4, 20), 1.2, "-"),
    ("Mixup", CONVNET, (4, 20), 1.2, "-"),
)
"""Methods on a network and random examples (E, B): the ratio to reach, and DomainBed's."""

ENVIRONMENTS, EXAMPLES, INPUTS = 16, 32, 18
IMAGES, SHAPE, CLASSES, BATCH = 256, (3, 16, 16), 10, 64
"""The inputs that adaptations adapt to."""
METHODS: dict[str, tuple[float | None, float | None]] = {
    "ADRMX": (None, 141.0),
    "ANDMask": (None, 3.40),
    "CAD": (2.6, 5.92),
    "CDANN": (None, 2.89),
    "CORAL": (1.7, 24.9),
    "CausIRL_CORAL": (1.6, 3.95),
    "CausIRL_MMD": (4.0, 6.93),
    "CondCAD": (2.6, 4.96),
    "DANN": (None, 2.82),
    "DGSAM": (5.0, None),
    "DISAM": (2.2, None),
    "EQRM": (1.3, 2.09),
    "ERMPlusPlus": (None, 1.20),
    "Fish": (4.0, 5.45),
    "Fishr": (1.3, None),
    "GroupDRO": (1.1, 2.26),
    "IB_ERM": (1.2, 2.47),
    "IB_IRM": (1.2, 4.28),
    "IGA": (5.0, 10.8),
    "IRM": (1.15, 2.50),
    "MLDG": (5.0, 13.5),
    "MMD": (4.0, 43.0),
    "MTL": (None, 2.95),
    "Mixup": (1.4, 2.36),
    "RDM": (2.2, None),
    "RSC": (1.6, 1.60),
    "SAM": (2.2, None),
    "SANDMask": (2.0, 9.67),
    "SD": (1.2, 1.02),
    "SagNet": (3.0, 4.39),
    "SelfReg": (6.0, 34.4),
    "Transfer": (None, 14.5),
    "URM": (None, 2.32),
    "VREx": (1.15, 1.22),
}
"""The most that a step should cost over ERM's, if not `SLACK` times its share of matrix products, and the
cost of DomainBed's `update` (at b93c22a) over its ERM's: CPU time on one thread, medians of 5 interleaved
rounds with an MLP 18-256-256-256 at 16 environments x 32 examples."""
SLACK = 1.2
"""How much more than its matrix products over ERM's a step may cost."""


def run_on_spirals(algorithm: str, batch_size: int) -> Run:
    entry = {"name": algorithm, "hparams": {"batch_size": batch_size}}
    spec = single({"name": "Spirals"}, entry, steps=STEPS, evaluate_every=30)
    return Run(spec, TrainSettings())


def warmed(work: Callable[[], object], times: int) -> Callable[[], object]:
    for _ in range(times):
        work()
    return work


def step_rows(folder: Path) -> list[Row]:
    """Update steps against ERM's, the making of a batch, and an evaluation."""
    return [batch_row(), evaluation_row(), *map(case_row, CASES)]


def batch_row() -> Row:
    run = run_on_spirals("ERM", 256)
    run.algorithm.train()
    batches, steps = itertools.count(), itertools.count(STEP)
    ready = itertools.cycle([run.batches_at(i)[i] for i in range(4)])
    step_alone = warmed(lambda: run.algorithm.train_step(next(ready), next(steps)), 5)
    batch, step = paired([lambda: run.batches_at(0)[next(batches)], step_alone], 6)
    return Row("making a batch / ERM step at 16 x 256", "<= 0.05", f"{batch / step:.3f}", "0.57")


def evaluation_row() -> Row:
    """An evaluation of all splits against nothing but the network on the same examples."""
    run = run_on_spirals("ERM", 32)
    run.algorithm.eval()

    @torch.no_grad()
    def forward() -> None:
        for environment in run.scored.environments.values():
            run.predict(environment.x)

    evaluation, alone = paired([run.evaluate, forward], 4)
    examples = sum(len(environment.y) for environment in run.scored.environments.values())
    what = f"evaluation / logits alone of {len(run.scored.environments)} environments, {examples} examples"
    return Row(what, "<= 1.5", f"{evaluation / alone:.2f}")


def on_random_data(
    algorithm: str, network: str, shape: tuple[int, ...], size: tuple[int, int], device: str = "cpu"
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
    counts = ((size[1] // (2 * task.classes),) * 2 * task.classes,) * size[0]
    problem = Problem(shape, task, names, STEPS, attributes=2, sizes=sizes, counts=counts)
    built = cls(build(network, hidden, shape, classes, 0), problem, cls.Hparams())
    built = built.to(device)
    built.optimizers = built.configure()
    y = torch.randint(max(2, classes), size, device=device)
    index = torch.arange(size[1], device=device).expand(size)
    attributes = torch.randint(2, size, device=device)
    x = torch.randn(*size, *shape, device=device)
    views = torch.randn(*size, cls.needs.views, *shape, device=device) if cls.needs.views else None
    y = y if classes > 1 else y.float()
    return built, Batch(x, y, index=index, attributes=attributes, views=views)


def random_updates(algorithm: Algorithm, batch: Batch) -> Callable[[], object]:
    """The update step of an algorithm on a batch, to its end on the device."""
    steps = itertools.count(STEP)

    def work() -> None:
        algorithm.train_step(batch, next(steps))
        if batch.x.is_cuda:
            torch.cuda.synchronize(batch.x.device)

    return warmed(work, 3)


def case_row(case: tuple[str, tuple[str, tuple[int, ...]], tuple[int, int], float, str]) -> Row:
    name, (network, shape), size, reach, peer = case
    works = [random_updates(*on_random_data(n, network, shape, size)) for n in ("ERM", name)]
    repeat = 1 if network == "ConvNet" else max(1, 4096 // math.prod(size))
    erm, seconds = paired(works, repeat)
    what = f"update step, {name} / ERM, {network} at {size[0]} x {size[1]}"
    return Row(what, f"<= {reach}", f"{seconds / erm:.2f}", peer)


def method_works(environments: int) -> dict[str, Callable[[], object]]:
    """An update step of each of our methods that trains a network of one logit, by name."""
    works = {}
    for name, cls in ours(algorithms).items():
        if cls.trains_network:
            built = on_random_data(name, "MLP", (INPUTS,), (environments, EXAMPLES))
            if why_skipped(type(built[0]), built[0].problem) is None:
                works[name] = random_updates(*built)
    return works


def products(work: Callable[[], object]) -> int:
    """The arithmetic operations in the matrix products and convolutions of a piece of work."""
    with FlopCounterMode(display=False) as counter:
        work()
    total: int = counter.get_total_flops()
    return total


def method_rows(folder: Path, repeat: int = 5, rounds: int = 15) -> list[Row]:
    """The CPU time of each method over ERM's at its default hyperparameters."""
    works = method_works(ENVIRONMENTS)
    seconds = dict(zip(works, paired([*works.values()], repeat, rounds=rounds), strict=True))
    of_erm = products(works["ERM"])
    shape = f"{ENVIRONMENTS} environments x {EXAMPLES}"
    rows = []
    for name, of_method in seconds.items():
        what = f"update step, {name} / ERM at {shape}, MLP {INPUTS}-256-256-256, 1 logit"
        reach, peer = METHODS.get(name, (None, None))
        most = f"{SLACK * products(works[name]) / of_erm:.2f}" if reach is None else reach
        texts = (f"<= {most}", f"{of_method / seconds['ERM']:.2f}")
        rows.append(Row(what, *texts, "-" if peer is None else f"{peer:.3g}"))
    return rows


def adaptation_rows(folder: Path, rounds: int = 5) -> list[Row]:
    """The CPU time of each adaptation at its defaults, over that of a forward pass of the inputs."""
    network = build("ConvNet", {"width": 16, "depth": 2}, SHAPE, CLASSES, 0).eval()
    x = torch.randn(IMAGES, *SHAPE, generator=torch.Generator().manual_seed(0))
    batches = in_batches(torch.arange(IMAGES), BATCH)
    stream = Stream(batches, lambda places: (x[each] for each in places))

    @torch.no_grad()
    def forward() -> object:
        return [network(x[each]) for each in batches]

    works = {name: lambda name=name: adapted(name, {}, network, stream, 0) for name in adaptations}
    alone, *times = paired([forward, *works.values()], 1, rounds=rounds)
    rows = []
    for (name, work), seconds in zip(works.items(), times, strict=True):
        most = SLACK * products(work) / products(forward)
        what = f"{name} / a forward pass, ConvNet at {IMAGES} inputs in batches of {BATCH}"
        rows.append(Row(what, f"<= {most:.2f}", f"{seconds / alone:.2f}"))
    return rows
