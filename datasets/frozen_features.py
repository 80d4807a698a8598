"""What a network that is not trained any more sees in images: worked out once, then heads train fast."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodbench.data.array_cache import Rows, keep, pieces
from oodbench.data.images import Images
from oodbench.data.streams import MemoryMapped, Stored
from oodbench.datasets import Dataset, Environment, Metadata, make, register
from oodbench.errors import UserError
from oodbench.hparams import defaults, hparam
from oodbench.networks.base import Network, build, networks
from oodbench.networks.weights import sha256
from oodbench.yaml_values import assignments

IN_MEMORY = 2**30
"""Features of at most so many bytes are held in memory."""


@register(
    "FrozenFeatures",
    Metadata(
        paper="none",
        licence="that of the images",
        family="features",
        shift="that of the images",
        network="Head",
        steps=2000,
    ),
)
class FrozenFeatures(Dataset):
    """The features of a dataset of image files under a network with given weights.

    `python -m oodbench.data cache FrozenFeatures` extracts them, without augmentation, into the data
    directory; the key of the files is made of the images, their size, the network and its weights.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """The images, and the network whose features are taken."""

        of: str = hparam("PACS")
        """The dataset of images."""
        settings: tuple[str, ...] = hparam(())
        """The options of that dataset, as KEY=VALUE."""
        network: str = hparam("ResNet50")
        weights: str = hparam("imagenet")
        """The weights of the network: a file, or as the network calls those that are published."""
        network_settings: tuple[str, ...] = hparam((), neutral=())
        """Other hyperparameters of that network, as KEY=VALUE, such as `model` of timm."""

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        images = make(
            options.of, assignments("`settings` of FrozenFeatures", options.settings), data_dir
        )
        if not isinstance(images, Images):
            raise UserError(f"FrozenFeatures takes a dataset of image files, not {options.of}")
        self.images = images
        self.environments = images.environments
        self.test_environments = images.test_environments
        self.task = images.task
        self.classes = images.classes
        self.attributes = images.attributes
        self.input_shape = (self._num_features(),)

    def load(self, trial: int) -> dict[str, Environment]:
        """The features (N, F) of every environment; raises UserError if they are not there."""
        folder = self._folder()
        if not folder.is_dir():
            raise UserError(
                f"{self.label}: there are no features in {folder}; `python -m oodbench.data cache "
                f"FrozenFeatures --data-dir {self.data_dir}`, with the same options, extracts them"
            )
        found = {}
        for i, (name, environment) in enumerate(self.images.load(trial).items()):
            file = folder / f"{i}.npy"
            small = file.stat().st_size <= IN_MEMORY
            x = torch.from_numpy(np.load(file)) if small else MemoryMapped(file)
            found[name] = Environment(x, environment.y, attributes=environment.attributes)
        return found

    def check(self) -> None:
        """Check the images; raises UserError as their dataset does."""
        self.images.check()

    def cache(self, workers: int) -> None:
        """Extract the features, on the first GPU if there is one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        network = self._network().to(device).eval()
        arrays = {}
        for i, environment in enumerate(self.images.load(0).values()):
            extract = partial(self._features, network, environment.x, workers)
            arrays[str(i)] = Rows(len(environment.y), self.input_shape, np.float32, extract)
        keep(self._folder(), self.label, arrays)

    @torch.no_grad()
    def _features(self, network: Network, images: Stored, workers: int) -> Iterator[Tensor]:
        device = next(network.parameters()).device
        for piece in pieces(images, workers):
            x = self.images.transform(piece.to(device), None)
            features: Tensor = network.featurizer(x)
            yield features.float().cpu()

    def _num_features(self) -> int:
        with torch.random.fork_rng(devices=()), torch.device("meta"):
            return build(
                self.options.network, self._values("none"), self.images.input_shape, 2, 0
            ).num_features

    def _network(self) -> Network:
        network: Any = networks.get(self.options.network)
        values = network.resolved(self._values(self.options.weights), self.images)
        return build(self.options.network, values, self.images.input_shape, 2, 0)

    def _values(self, weights: str) -> dict[str, Any]:
        name = self.options.network
        space: Any = networks.get(name, f"the options of {self.name}").Hparams
        values = defaults(space)
        if "weights" not in values:
            raise UserError(f"the network {name} has no weights that could be frozen")
        given = assignments("`network_settings` of FrozenFeatures", self.options.network_settings)
        return values | given | {"weights": weights}

    def _folder(self) -> Path:
        if self.data_dir is None:
            raise UserError("FrozenFeatures needs --data-dir DIR, where the features are kept")
        if self.options.weights == "none":
            raise UserError("FrozenFeatures needs `weights`: a file or a name such as imagenet")
        network: Any = networks.get(self.options.network)
        weights = sha256(network.weights_file(self._values(self.options.weights)))
        images = self.images.fingerprint(self.images.listing())
        parts: tuple[Any, ...] = (images, self.images.input_shape, self.options.network, weights)
        if self.options.network_settings:
            parts += (sorted(self.options.network_settings),)
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return self.data_dir / ".oodbench" / f"features-{self.options.of}-{key}"
