"""The files of a set of CoinRun data: one shard a level, and a manifest."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oodbench.errors import UserError
from oodbench.files import whole_file, write_whole

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
    """The expert: `planner`, or `policy ` and the md5 of its file."""


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


def read(folder: Path) -> Manifest:
    """The manifest of the set in `folder`; raises UserError for one that is damaged."""
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text())
        return Manifest(Settings(**values["settings"]), dict(values["checksums"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: it is not the manifest of a set") from error


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, whole and renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")
