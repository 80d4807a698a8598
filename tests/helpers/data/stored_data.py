"""A dataset on disk, for the tests of streaming: a plug-in, as a user's own would be.

`python -m tests.helpers.data.stored_data FOLDER stored|memory` prints the megabytes at most of a run in a
process of its own; the folder holds the files of `write`, with `SIDE` pixels a side. Pages of mapped files
do not count: the system takes them back when it needs them.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oodbench.data.streams import MemoryMapped
from oodbench.datasets import Dataset, Environment, Metadata, register
from oodbench.hparams import hparam
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

METADATA = Metadata(
    paper="none", licence="MIT", family="synthetic", shift="brightness", network="MLP", steps=20
)


@register("Speckles", METADATA)
class Speckles(Dataset):
    """Images of noise, brighter in class 1 and in later environments; flipped at random in training."""

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        stored: bool = hparam(True)
        side: int = hparam(8)

    options: Options
    environments = ("a", "b", "test")
    test_environments = ("test",)
    task = Task("binary")

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.input_shape = (3, options.side, options.side)

    def load(self, trial: int) -> dict[str, Environment]:
        assert self.data_dir is not None
        found = {}
        for name in self.environments:
            files = sorted(self.data_dir.glob(f"{name}-*.npy"))
            stored = MemoryMapped(files)
            y = torch.from_numpy(np.load(self.data_dir / f"y-{name}.npy"))
            x = stored if self.options.stored else stored.read(torch.arange(len(stored)))
            found[name] = Environment(x, y)
        return found

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        x = x.float() / 255
        if generator is not None:
            flip = torch.rand(len(x), generator=generator).to(x.device) < 0.5
            x = torch.where(flip[:, None, None, None], x.flip(3), x)
        return x


def write(folder: Path, sizes: tuple[int, ...] = (40, 30, 20), side: int = 8) -> None:
    """Write the files, each environment's in two shards."""
    generator = np.random.default_rng(0)
    for e, (name, size) in enumerate(zip(Speckles.environments, sizes, strict=True)):
        y = generator.integers(2, size=size).astype(np.float32)
        x = generator.integers(100, size=(size, 3, side, side), dtype=np.uint8) + np.uint8(20 * e)
        x += (60 * y[:, None, None, None]).astype(np.uint8)
        np.save(folder / f"y-{name}.npy", y)
        for shard, part in enumerate(np.array_split(x, 2)):
            np.save(folder / f"{name}-{shard}.npy", part)


def rows(*sizes: int) -> Iterator[np.ndarray]:
    """Arrays whose rows are all different, counted on from one to the next."""
    start = 0
    for size in sizes:
        yield (np.arange(start, start + size)[:, None] * 10 + np.arange(5)).astype(np.int32)
        start += size


SIDE, STEPS = 32, 60


def main(folder: Path, stored: bool) -> float:
    """Train for some steps, evaluate everything, and say what it took."""
    dataset = {"name": Speckles.name, "side": SIDE, "stored": stored}
    method = {"name": "ERM", "hparams": {"batch_size": 64}}
    network = {"name": "MLP", "hparams": {"width": 4, "depth": 1}}
    spec = single(dataset, method, folder, network=network, steps=STEPS)
    run = Run(spec, TrainSettings(data_dir=folder, loader_workers=2))
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        peak = pool.submit(_peak, done)
        run.run_steps(STEPS)
        run.evaluate()
        done.set()
    return peak.result()


def _peak(done: threading.Event) -> float:
    """The most private memory that was seen until `done`, looked at every few milliseconds."""
    most = 0
    while not done.wait(0.003):
        status = Path("/proc/self/status").read_text().splitlines()
        (now,) = (line.split()[1] for line in status if line.startswith("RssAnon"))
        most = max(most, int(now))
    return most / 1024


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.argv[2] == "stored"))
