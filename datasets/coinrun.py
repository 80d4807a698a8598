"""CoinRun behavioural cloning: imitate an expert on some levels, play as it does on others."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from oodbench.data.coinrun import (
    ACTIONS,
    FIRST_UNSEEN,
    FOLDER,
    IMAGE,
    KEYS,
    PLANNER,
    TRAINING,
    UNSEEN,
    Settings,
    Shard,
    make,
    shards,
)
from oodbench.data.made import MANIFEST, Manifest, finished_set
from oodbench.data.streams import MemoryMapped, Subset
from oodbench.datasets import Environment, FileDataset, Metadata, register
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task


@register(
    "CoinRun",
    Metadata(
        paper="arXiv:2009.00329, section 3.3",
        licence="MIT (the game: openai/procgen)",
        family="coinrun",
        shift="layout, background and colours of the level",
        network="ResNet18",
        steps=6400,
        folder=FOLDER,
    ),
)
class CoinRun(FileDataset):
    """Images of a platform game and what an expert would do: a distribution over 15 actions.

    Every training level is an environment, `level0`, `level1` and so on; `unseen`, the test environment,
    holds one state of each of many other levels. The default sizes are the paper's: 64 levels of
    1,000 states and 2,000 test levels. `python -m oodbench.data make CoinRun` makes the data, in hard
    mode; the paper's expert, a policy trained for 400 million steps, is not published, so ours is
    a search (`oodbench.data.coinrun`).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """How much of the set is read: its first `levels`, `states` and `test_levels`."""

        levels: int = hparam(64, low=1, high=FIRST_UNSEEN)
        states: int = hparam(1000, low=1)
        test_levels: int = hparam(2000, low=1)
        expert: str = hparam("planner")
        """The expert that made the set, as its manifest names it."""

    input_shape = (IMAGE[2], *IMAGE[:2])
    task = Task("distribution", ACTIONS)
    classes = KEYS
    test_environments = (UNSEEN,)

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.environments = (*(f"level{i}" for i in range(options.levels)), UNSEEN)

    def load(self, trial: int) -> dict[str, Environment]:
        """The levels, the same in every trial; raises UserError for missing or damaged data."""
        options = self.options
        environments = {
            f"level{i}": self._environment([Shard(TRAINING, i)], options.states)
            for i in range(options.levels)
        }
        unseen = [Shard(UNSEEN, i) for i in range(options.test_levels)]
        return environments | {UNSEEN: self._environment(unseen, options.test_levels)}

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map bytes (N, 64, 64, 3) to (N, 3, 64, 64) in [0, 1]."""
        return x.permute(0, 3, 1, 2).float() / 255

    @property
    def checksums(self) -> Mapping[str, str]:
        """The md5 of each file that is read, by the set's manifest; raises UserError without it."""
        known = self._manifest().checksums
        wanted = Settings(**asdict(self.options))
        files = [file for shard in shards(wanted) for file in shard.files]
        return {f"{FOLDER}/{file}": known[file] for file in files}

    def _manifest(self) -> Manifest[Settings]:
        """The manifest of a complete set; raises UserError if the set has less than the options ask for."""
        path = self.file(f"{FOLDER}/{MANIFEST}")
        manifest = finished_set(path, Settings, self.command(self.data_dir))
        has = manifest.settings
        for name, wanted in asdict(self.options).items():
            made = getattr(has, name)
            if made != wanted if name == "expert" else made < wanted:
                raise UserError(f"{path}: the set has {name} {made!r}, not {wanted!r}")
        return manifest

    def _environment(self, parts: list[Shard], count: int) -> Environment:
        files = [[self.file(f"{FOLDER}/{file}") for file in part.files] for part in parts]
        images, actions = zip(*files, strict=True)
        x, targets = MemoryMapped(images), MemoryMapped(actions)
        y = targets.read(torch.arange(len(targets)))
        if x.shape != IMAGE or len(x) != len(y):
            raise UserError(f"{images[0]} does not hold the images of {actions[0]}")
        return Environment(x if len(x) == count else Subset(x, torch.arange(count)), y[:count])

    def command(self, data_dir: object) -> str:
        """The command that makes the data, as a user types it."""
        sizes = "".join(
            f" --set {name}={value}"
            for name, value in asdict(self.options).items()
            if name != "expert"
        )
        return f"{super().command(data_dir)}{sizes}"

    def make(self, data_dir: Path, source: Path | None, workers: int) -> None:
        """Make the levels that the options name; an interrupted call is continued."""
        options = self.options
        if source is not None or options.expert != PLANNER:
            raise UserError(f"{self.name} is made by the expert '{PLANNER}', and not --from a file")
        folder = make(data_dir, Settings(**asdict(options)), workers)
        from oodbench.terminal import terminal  # rich draws random numbers as it is imported

        terminal().say(
            f"{options.levels} levels of {options.states} states and {options.test_levels} test levels "
            f"are in {folder}"
        )
