"""The cost of loading images, compared with DomainBed's loaders."""

import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler

from oodbench.datasets import IMAGENET, make, require_files
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.plan import single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.bench import Row

ENVIRONMENTS = ("a", "b", "test")
SIZE, BATCH, WORKERS = 64, 32, 2
NETWORKS: dict[str, dict[str, Any]] = {
    "ConvNet": {},
    "ResNet18": {"weights": "none", "freeze_batch_norm": False},
}
PREFETCHED = 4
"""The number of batches that an idle DataLoader with two workers holds ready."""
BATCHES, ROUNDS = 40, 3


def write_images(root: Path, count: int) -> None:
    """`count` JPEG files of smooth noise in each of the two classes of each environment."""
    generator = np.random.default_rng(0)
    for environment in ENVIRONMENTS:
        for label in ("x", "y"):
            folder = root / environment / label
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).resize((SIZE, SIZE)).save(folder / f"{i}.jpg")


def domainbeds(root: Path) -> Callable[[], list[Any]]:
    """An endless loader for each training environment, with workers of its own each.

    Images are drawn with replacement and transformed one by one, as in arXiv:2007.01434's code.
    """
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [
        transforms.RandomResizedCrop(SIZE, scale=(0.7, 1.0)),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
        transforms.RandomGrayscale(),
        transforms.ToTensor(),
        transforms.Normalize(*IMAGENET),
    ]
    loaders = []
    for environment in ENVIRONMENTS[:-1]:
        data = ImageFolder(str(root / environment), transforms.Compose(steps))
        endless = RandomSampler(data, replacement=True, num_samples=2**62)
        loader = DataLoader(data, BATCH, sampler=endless, num_workers=WORKERS)
        loaders.append(iter(loader))
    return lambda: [next(loader) for loader in loaders]


def erm(root: Path, network: str, trial: int) -> RunSpec:
    """A run of ERM on the files; a trial's data are loaded once in a process."""
    dataset = {"name": "ImageFolder", "root": str(root), "size": SIZE}
    method = {"name": "ERM", "hparams": {"batch_size": BATCH}}
    chosen = {"name": network, "hparams": NETWORKS[network]}
    return single(dataset, method, trials=[trial], steps=100_000, network=chosen)


def waiting_share(run: Run, steps: int) -> float:
    """The share of `steps` steps' time spent waiting for data, after two steps that warm up."""
    run.run_steps(2)
    seconds, waited = run.seconds, run.waited
    run.run_steps(steps)
    return (run.waited - waited) / (run.seconds - seconds)


def waiting_row(what: str, share: float) -> Row:
    return Row(f"share of ERM's step waiting for data, {what}", "< 0.1", f"{share:.3f}")


def cpu_seconds() -> float:
    """The CPU seconds that this process and its living children have used; Linux only."""
    used = time.process_time()
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def ratios(run: Run, peer: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and CPU seconds, of the peer's batches over ours, measured in turn.

    Batches that were ready before are not counted in the seconds.
    """
    steps = itertools.count()
    works: tuple[Callable[[], object], ...] = (peer, lambda: run.batches_at(0)[next(steps)])
    seconds: tuple[list[float], list[float]] = ([], [])
    used = [0.0, 0.0]
    for _ in range(ROUNDS):
        for k, work in enumerate(works):
            time.sleep(1.0)  # until the other's workers rest
            cpu = cpu_seconds()
            for _ in range(PREFETCHED):
                work()
            start = time.perf_counter()
            for _ in range(BATCHES):
                work()
            seconds[k].append(time.perf_counter() - start)
            time.sleep(1.0)  # until what is read ahead is there: as much as was there before
            used[k] += cpu_seconds() - cpu
    return statistics.median(seconds[0]) / statistics.median(seconds[1]), used[0] / used[1]


def loading_rows(folder: Path) -> list[Row]:
    """Samples a second against DomainBed's loaders, and the share of a run that waits for data."""
    root = folder / "images"
    write_images(root, 300)
    settings = TrainSettings(loader_workers=WORKERS)
    peer = domainbeds(root)
    direct = ratios(Run(erm(root, "ConvNet", 0), settings), peer)
    require_files(make("ImageFolder", {"root": str(root), "size": SIZE})).cache(WORKERS)
    cached = ratios(Run(erm(root, "ConvNet", 1), settings), peer)
    what = f"augmented {SIZE} x {SIZE} images a {{}} / one loader an environment, {WORKERS} workers"
    rows = [
        Row(f"{what.format(unit)}, {how}", reach, f"{value:.1f}", "1")
        for how, reach, both in (
            ("decoding files", "-", direct),
            ("decoded before", ">= 5", cached),
        )
        for unit, value in zip(("second", "CPU second"), both, strict=True)
    ]
    del peer  # and its processes
    for network in NETWORKS:
        run = Run(erm(root, network, 1), settings)
        share = waiting_share(run, 30 if network == "ConvNet" else 5)
        rows.append(waiting_row(network, share))
    return rows
