"""Features of images from a frozen network, computed once, so that heads train fast."""

import hashlib
import shlex
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oodbench.data.pictures.folders import Images
from oodbench.data.preparation import fits
from oodbench.data.streams import MemoryMapped, Rows, Stored, keep, pieces
from oodbench.datasets import (
    Dataset,
    Environment,
    FileDataset,
    Metadata,
    make,
    register,
    require_files,
)
from oodbench.errors import MissingError, UserError, unknown
from oodbench.files import open_regular
from oodbench.hparams import defaults, hparam, identity
from oodbench.networks.base import Network, build, networks
from oodbench.networks.weights import is_there, require_sha256, sha256
from oodbench.results.predictions import opened_arrays
from oodbench.yaml_values import assignments

IN_MEMORY = 2**30
"""Features of at most this number of bytes are held in memory."""
CHUNK = 32
"""Inputs in memory per forward pass: the activations of small inputs can be large."""
SAMPLE = 4
"""Stored inputs of an environment that identify it in a hash."""
KEPT = (
    *("environments", "test_environments", "validation_environments", "evaluation_environments"),
    *("task", "classes", "attributes", "metric", "higher_is_better", "split_metrics"),
    *("holdout", "cluster_names", "separates_clusters"),
)
"""The attributes that the features take over from the dataset of images."""

_IMAGES: WeakValueDictionary[tuple[Any, ...], Dataset] = WeakValueDictionary()
"""The datasets of images in use, so that a folder is listed once for the features of several networks."""


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
class FrozenFeatures(FileDataset):
    """The features of any dataset of images, from a network with given weights or from a `file`.

    Environments, splits, clusters, attributes and metrics are that dataset's. Features are extracted once,
    without augmentation, into the data directory: `python -m oodbench.data cache FrozenFeatures` does so
    for inputs on disk, the first `load` for inputs in memory. Their folder is named by a hash of the
    network, its weights and the inputs (names, sizes and times of image files, the number and a few of
    other inputs on disk).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The images, and the network whose features are taken."""

        of: str = hparam("PACS")
        """The dataset of images."""
        settings: tuple[str, ...] = hparam(())
        """The options of that dataset, as KEY=VALUE."""
        network: str = hparam("ResNet50")
        weights: str = hparam("imagenet")
        """The weights of the network: a file, in the working or the data directory, or the network's name
        for published ones. A run's id holds them as given, a file by its path, unless `sha256` is given."""
        network_settings: tuple[str, ...] = hparam((), neutral=())
        """Other hyperparameters of that network, as KEY=VALUE, such as `model` of timm."""
        sha256: str = hparam("", neutral="")
        """The SHA-256 of the file of the weights, by which a run's id names them wherever the file is; a
        run refuses another file. A plan sets it for the network timm."""
        file: str = hparam("", neutral="")
        """A file of numpy.savez with the features of any model: an array (N, F) for each environment, its
        examples in the order of `load`. No network is needed then, and `sha256` is that of this file."""
        as_test: str = hparam("", neutral="")
        """The environment whose examples all others get, for a ceiling on it as test environment. Some of
        its examples have to be unseen in training (`Environment.unseen`), as in `EmojiStyles`."""

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        key = options.of, options.settings, data_dir
        images = _IMAGES.get(key) or make(
            options.of, assignments("`settings` of FrozenFeatures", options.settings), data_dir
        )
        _IMAGES[key] = images
        if len(images.input_shape) != 3 or fits(images):
            raise UserError(f"FrozenFeatures takes a dataset of images, not {options.of}")
        self.images = images
        for name in KEPT:
            setattr(self, name, getattr(images, name))
        self.repeats = images.repeats or bool(options.as_test)
        self.input_shape = (self._num_features(),)
        if options.as_test and options.as_test not in images.environments:
            raise unknown("environment", options.as_test, images.environments, "`as_test`")

    def resolved_options(self, pretrained: bool) -> dict[str, Any]:
        """The SHA-256 of the file of features, or of the weights if the network's own runs record it."""
        if self.options.file:
            return {"sha256": sha256(self._given())}
        space = networks.get(self.options.network).Hparams
        known = "sha256" in identity(space, self._values(self.options.weights))
        return {"sha256": self._sha256()} if known else {}

    def load(self, trial: int) -> dict[str, Environment]:
        """The features (N, F) of every environment; raises UserError if they are not there."""
        environments = self.images.load(trial)
        if self.options.file:
            return self._shown(self._with_given(environments))
        folder = self._folder(environments)
        if not folder.is_dir():
            self._require_memory(environments, folder)
            self._extract(environments, folder, 0)
        featured = {}
        for i, (name, environment) in enumerate(environments.items()):
            file = folder / f"{i}.npy"
            small = file.stat().st_size <= IN_MEMORY
            x = torch.from_numpy(np.load(file)) if small else MemoryMapped(file)
            featured[name] = replace(environment, x=x)
        return self._shown(featured)

    def _require_memory(self, environments: Mapping[str, Environment], folder: Path) -> None:
        """Raise MissingError for inputs on disk: only the command `cache` extracts their features."""
        if any(isinstance(each.x, Stored) for each in environments.values()):
            command = f"python -m oodbench.data cache FrozenFeatures --data-dir {self.data_dir}"
            for key, value in self.changed_options.items():
                text = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
                command += f" --set {shlex.quote(f'{key}={text}')}"
            raise MissingError(
                f"{self.label}: there are no features in {folder}; `{command}` extracts them",
                command,
            )

    def _shown(self, featured: dict[str, Environment]) -> dict[str, Environment]:
        if not self.options.as_test:
            return featured
        shown = featured[self.options.as_test]
        if shown.unseen is None:
            raise UserError(f"`as_test` of {self.name}: {self.options.of} has no unseen examples")
        return dict.fromkeys(featured, shown)

    def _given(self) -> Path:
        file = Path(self.options.file).expanduser()
        if not file.is_file():
            raise UserError(f"`file` of {self.label}: there is no file {file}")
        if self.options.sha256 not in ("", sha256(file)):
            raise UserError(f"{file} does not have the SHA-256 {self.options.sha256}")
        return file

    def _arrays(self) -> Mapping[str, NDArray[np.float32]]:
        file = self._given()
        return _read_arrays(file, sha256(file), self.label)

    def _with_given(self, environments: Mapping[str, Environment]) -> dict[str, Environment]:
        arrays, featured = self._arrays(), {}
        for name, environment in environments.items():
            x = arrays.get(name)
            if x is None or x.shape != (len(environment.y), *self.input_shape):
                found = "no array" if x is None else f"an array {x.shape}"
                raise UserError(
                    f"{self.options.file} has {found} of {name}, which has {len(environment.y)} examples "
                    f"in {self.options.of}"
                )
            featured[name] = replace(environment, x=torch.from_numpy(x))
        return featured

    @property
    def files_read(self) -> Collection[Path]:
        """The files of the images, and the file of features."""
        own = [self._given()] if self.options.file else []
        return [*self.images.files_read, *own]

    def check(self) -> None:
        """Check the images and that there are features; raises UserError as `load` does."""
        self.images.check()
        if self.options.file:
            self._given()
        elif not (folder := self._folder(environments := self.images.load(0))).is_dir():
            self._require_memory(environments, folder)

    def cache(self, workers: int) -> None:
        """Extract the features of trial 0, on the first GPU if there is one."""
        self._weights_file()
        environments = self.images.load(0)
        self._extract(environments, self._folder(environments), workers)

    def read(self, files: Sequence[str | PathLike[str]]) -> Tensor:
        """The features (N, F) of new files; raises UserError for one that cannot be read."""
        return self.features(require_files(self.images).read(files))

    def features(self, x: Tensor) -> Tensor:
        """The features (N, F) of inputs (N, ...) as the environments of the images hold them."""
        return torch.cat([*self._features(torch.split(x, CHUNK))])

    def _extract(self, environments: Mapping[str, Environment], folder: Path, workers: int) -> None:
        def rows(x: Tensor | Stored) -> Rows:
            def pieces_of_features() -> Iterator[Tensor]:
                if isinstance(x, Stored):
                    return self._features(pieces(x, workers))
                return self._features(torch.split(x, CHUNK))

            return Rows(len(x), self.input_shape, np.float32, pieces_of_features)

        arrays = {str(i): rows(each.x) for i, each in enumerate(environments.values())}
        keep(folder, f"features of {self.options.of} under {self.options.network}", arrays)

    @torch.no_grad()
    def _features(self, inputs: Iterable[Tensor]) -> Iterator[Tensor]:
        device = next(self._network.parameters()).device
        for piece in inputs:
            x = self.images.transform(piece.to(device), None)
            features: Tensor = self._network.featurizer(x)
            yield features.float().cpu()

    def _num_features(self) -> int:
        if self.options.file:
            return int(next(iter(self._arrays().values())).shape[-1])
        values = tuple(sorted(self._values("none").items()))
        with suppress(UserError):  # pictures that are not there
            # features that are there say it without the network, whose package takes seconds to import
            if isinstance(self.images, Images) and (folder := self._folder({})).is_dir():
                return int(np.load(folder / "0.npy", mmap_mode="r").shape[-1])
        if not all(self.images.input_shape):  # of a folder that is not there
            self.images.check()
        return _width(self.options.network, values, self.images.input_shape)

    @cached_property
    def _network(self) -> Network:
        network: Any = networks.get(self.options.network)
        values = self._values(self.options.weights)
        require_sha256(self._weights_file(), self.options.sha256)
        values = network.resolved(values, self.images)
        with torch.random.fork_rng(devices=()):
            built = build(self.options.network, values, self.images.input_shape, 2, 0)
        return built.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def _values(self, weights: str) -> dict[str, Any]:
        name = self.options.network
        space: Any = networks.get(name, f"the options of {self.name}").Hparams
        values = defaults(space)
        if "weights" not in values:
            raise UserError(f"the network {name} has no weights that could be frozen")
        given = assignments("`network_settings` of FrozenFeatures", self.options.network_settings)
        if self.data_dir and not is_there(Path(weights)) and is_there(self.data_dir / weights):
            weights = str(self.data_dir / weights)
        return values | given | {"weights": weights}

    def _weights_file(self) -> Path | None:
        values = self._values(self.options.weights)
        file = Path(values["weights"])
        if file.suffix and not is_there(file):
            digest = f", with SHA-256 {self.options.sha256}" if self.options.sha256 else ""
            raise MissingError(
                f"{self.label}: there is no file of weights {(self.data_dir or Path()) / file}: put it "
                f"there{digest}"
            )
        network: Any = networks.get(self.options.network)
        found: Path | None = network.weights_file(values)
        return found

    def _sha256(self) -> str:
        """The checksum of the weights; their file is not needed if the options state it."""
        if self.options.weights == "none":
            raise UserError(
                "FrozenFeatures refuses `weights: none`, which are random: give a file or a name such as "
                "`imagenet`, or `cached` for timm's"
            )
        if self.options.sha256:
            return self.options.sha256
        return sha256(file) if (file := self._weights_file()) else ""

    def _folder(self, environments: Mapping[str, Environment]) -> Path:
        if self.data_dir is None:
            raise UserError("FrozenFeatures needs --data-dir DIR, where the features are kept")
        weights, images = self._sha256(), self.images
        inputs = (
            images.fingerprint
            if isinstance(images, Images)
            else f"{asdict(images.options)} {_digest(environments)}"
        )
        parts: tuple[Any, ...] = (inputs, images.input_shape, self.options.network, weights)
        if self.options.network_settings:
            parts += (sorted(self.options.network_settings),)
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return self.data_dir / ".oodbench" / f"features-{self.options.of}-{key}"


@lru_cache
def _width(network: str, values: tuple[tuple[str, Any], ...], input_shape: tuple[int, ...]) -> int:
    with torch.random.fork_rng(devices=()), torch.device("meta"):
        return build(network, dict(values), input_shape, 2, 0).num_features


@lru_cache(maxsize=2)
def _read_arrays(file: Path, digest: str, who: str) -> Mapping[str, NDArray[np.float32]]:
    try:
        with open_regular(file) as opened, opened_arrays(opened) as stored:
            arrays = {name: stored[name].astype(np.float32) for name in stored.files}
    except (AttributeError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"`file` of {who}: {file} is not a numpy.savez file ({error})") from error
    if not arrays or any(values.ndim != 2 for values in arrays.values()):
        raise UserError(f"`file` of {who}: {file} must have arrays (N, F)")
    return arrays


def _digest(environments: Mapping[str, Environment]) -> str:
    """A hash of all inputs in memory; of inputs on disk, a hash of their number and a sample."""
    digest = hashlib.sha256()
    for environment in environments.values():
        x = environment.x
        digest.update(f"{len(x)} {x.shape[1:]}".encode())
        if isinstance(x, Stored):
            x = x.read(torch.linspace(0, len(x) - 1, min(len(x), SAMPLE)).long())
        digest.update(x.contiguous().numpy().data)
    return digest.hexdigest()
