"""Sets of CoinRun data: a shard a level and a manifest, made by processes that go on after a stop."""

import itertools
import json
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from oodbench.data.coinrun.experts import Planner
from oodbench.data.coinrun.simulator import package
from oodbench.data.streams import progress
from oodbench.errors import UserError
from oodbench.files import whole_file, write_whole
from oodbench.identity import md5
from oodbench.orphans import end_with_parent
from oodbench.seeds import derive

FOLDER = "CoinRun"
"""The folder of sets of CoinRun data under the data directory."""
MANIFEST = "manifest.json"
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


@dataclass(frozen=True)
class Manifest:
    """The settings of a set and the md5 of each of its files; none while it is being made."""

    settings: Settings
    checksums: dict[str, str]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the set in `folder`; raises UserError for one that is damaged."""
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text())
        return Manifest(Settings(**values["settings"]), dict(values["checksums"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: it is not the manifest of a set") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, whole and renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")


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
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            _start(folder, settings)
            missing = [s for s in shards(settings) if not s.exists(folder)]
            if missing:
                _fill(folder, missing, settings, workers)
            files = [file for shard in shards(settings) for file in shard.files]
            write_manifest(folder, Manifest(settings, {file: md5(folder / file) for file in files}))
    except Timeout as error:
        raise UserError(f"another process makes data in {folder}") from error
    return folder


def _start(folder: Path, settings: Settings) -> None:
    if (folder / MANIFEST).is_file():
        known = read_manifest(folder)
        if known.settings != settings:
            raise UserError(f"{folder} holds another set: {known.settings}, not {settings}")
        for file, checksum in known.checksums.items():
            if (folder / file).is_file() and md5(folder / file) != checksum:
                (folder / file).unlink()
    write_manifest(folder, Manifest(settings, {}))


def _fill(folder: Path, missing: list[Shard], settings: Settings, workers: int) -> None:
    order = random.Random(0).sample(missing, len(missing))  # an even mix, for the time left
    task = partial(make_shard, folder=folder, settings=settings)
    context = multiprocessing.get_context("spawn")
    with progress() as bar, ProcessPoolExecutor(workers, context, end_with_parent) as pool:
        total = len(shards(settings))
        row = bar.add_task("levels", total=total, completed=total - len(missing))
        try:
            for future in as_completed([pool.submit(task, shard) for shard in order]):
                future.result()
                bar.advance(row)
        except BrokenProcessPool as error:
            raise UserError("a process died; the same command goes on from here") from error
        finally:
            pool.shutdown(cancel_futures=True)


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
