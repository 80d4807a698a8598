"""Sets of CoinRun data: a shard a level."""

import itertools
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oodbench.data.coinrun.experts import Planner
from oodbench.data.coinrun.simulator import package
from oodbench.data.made import make_set
from oodbench.files import whole_file
from oodbench.seeds import derive

FOLDER = "CoinRun"
"""The folder of sets of CoinRun data under the data directory."""
TRAINING, UNSEEN = "training", "unseen"


@dataclass(frozen=True)
class Settings:
    """The contents of a set."""

    levels: int
    states: int
    """The number of states of each training level; a test level gives one."""
    test_levels: int
    expert: str
    """The expert: `planner`."""


@dataclass(frozen=True)
class Shard:
    """The states of one level: images (n, 64, 64, 3) uint8 and distributions (n, 15) float32."""

    part: str
    place: int

    @property
    def files(self) -> tuple[str, str]:
        """The paths of the images and of the distributions in the set's folder."""
        stem = f"{self.part}/{self.place:05d}"
        return f"{stem}.images.npy", f"{stem}.actions.npy"

    def exists(self, folder: Path) -> bool:
        """Whether the shard has been written."""
        return all((folder / file).is_file() for file in self.files)

    def write(self, folder: Path, images: NDArray[np.uint8], actions: NDArray[np.float32]) -> None:
        """Write both files, each whole and renamed."""
        arrays: tuple[NDArray[Any], ...] = (images, actions)
        for file, array in zip(self.files, arrays, strict=True):
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as stream:
                np.save(stream, array)


def shards(settings: Settings) -> list[Shard]:
    """All shards of a set."""
    training = [Shard(TRAINING, i) for i in range(settings.levels)]
    return training + [Shard(UNSEEN, i) for i in range(settings.test_levels)]


PLANNER = "planner"
FIRST_UNSEEN = 1_000_000
"""The seed of the first test level: no set has so many training levels, which start at 0."""


def make(data_dir: Path, settings: Settings, workers: int) -> Path:
    """Make the set that `settings` describe in its folder under `data_dir`, and return the folder.

    Shards that are there already are kept, unless the set was whole and their checksums say that
    they are damaged: what was stopped goes on, at the cost of the levels in the midst. The result
    depends on the settings alone. Raises UserError without the game, and if another set is there
    or being made.
    """
    package()
    folder = data_dir / FOLDER
    pieces = {shard: shard.files for shard in shards(settings)}
    make_set(
        folder,
        settings,
        pieces,
        partial(make_shard, folder=folder, settings=settings),
        workers,
        "levels",
    )
    return folder


def make_shard(shard: Shard, folder: Path, settings: Settings) -> None:
    """Make and write the states of one level.

    The states are drawn without replacement from those of whole games, as many as it takes. A
    level whose coin the expert finds no way to is replaced by the next one that is free.
    """
    training = shard.part == TRAINING
    first, step = (0, settings.levels) if training else (FIRST_UNSEEN, settings.test_levels)
    count = settings.states if training else 1
    for level in itertools.count(first + shard.place, step):
        stream = np.random.default_rng(derive("coinrun", settings.expert, level))
        with closing(Planner(level)) as expert:
            visited = list(expert.episode(stream))
            while visited and len(visited) < count:
                visited += expert.episode(stream)
        if visited:
            break
    chosen = [visited[i] for i in stream.permutation(len(visited))[:count]]
    images, actions = (np.stack(part) for part in zip(*chosen, strict=True))
    shard.write(folder, images, actions)
