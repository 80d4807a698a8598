"""The interface of a dataset with environments, and the registry of the folder datasets/."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from oodbench.errors import MissingError, UserError
from oodbench.hparams import checked, defaults
from oodbench.identity import md5 as md5  # for datasets of files
from oodbench.registry import Registry, folder
from oodbench.seeds import derive
from oodbench.tasks import Task

__path__ = [str(folder("datasets"))]

datasets: Registry[type["Dataset"]] = Registry("dataset", "oodbench.datasets")
D = TypeVar("D", bound=type["Dataset"])
Half = Literal["constructed", "natural", ""]
ShiftKind = Literal["spurious", "style", "scale", "time", "population", "posterior", "labels", ""]
"""An attribute that goes with the target elsewhere, how inputs look, the scale of noise, when or where and
from whom examples are, P(y | x) itself, or wrong labels of the training environments."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The facts about a dataset that are known without reading it."""

    paper: str
    licence: str
    family: str
    """Datasets of a family share the defaults and ranges of hyperparameters."""
    shift: str
    """The property that changes between environments, in a few words."""
    half: Half = ""
    """`constructed` or `natural`: whether somebody built the shift; empty where the user's files decide."""
    shift_kind: ShiftKind = ""
    """The kind of shift, by which boards average: empty where the user's files decide."""
    network: str
    """The network that is trained unless a sweep names another."""
    steps: int
    """The number of updates of a run unless a sweep says otherwise."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """The md5 of each file that is read, by its path under the data directory."""
    folder: str = ""
    """The folder under the data directory with the files that have no checksum here."""
    hparams: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of methods' hyperparameters on this dataset, instead of the family's."""


@dataclass(frozen=True)
class Environment:
    """The examples of one environment."""

    x: Any
    """Inputs: a tensor (N, ...), or `oodbench.data.streams.Stored`. `Dataset.transform` takes them to
    (N, *input_shape)."""
    y: Tensor
    """Targets, (N, ...), see `Task`."""
    clusters: Tensor | None = None
    """(N,) integers: examples of a cluster stay on one side of a split. None: all differ."""
    out: Tensor | None = None
    """(N,) booleans: whether an example is of the `out` split. None: the split is drawn."""
    attributes: Tensor | None = None
    """(N,) integers from 0: the attribute of each example, by its place in `Dataset.attributes`."""
    unseen: Tensor | None = None
    """(N,) booleans: whether an example is there where the environment is held out, and only there; the
    others are there where it is trained on. So environments can have drawings, faces or people in common
    of which a run is tested on none that it has seen. None: all examples, in both cases."""


def register(name: str, metadata: Metadata) -> Callable[[D], D]:
    """Register a dataset under `name`."""

    def decorate(cls: D) -> D:
        cls.name, cls.metadata = name, metadata
        datasets.add(name)(cls)
        return cls

    return decorate


class Normalization(NamedTuple):
    """The means and standard deviations of the channels, which are subtracted and divided by."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Means and deviations of images (N, C, H, W), (C, 1, 1) each, which go to a device once."""
        return _on(self, device)


@lru_cache
def _on(normalization: Normalization, device: torch.device) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in normalization)
    return mean, std


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The mean and standard deviation of ImageNet's images, by channel."""


class Dataset(ABC):
    """A set of named environments.

    The constructor sets the attributes below and reads no data, unless they depend on these.
    """

    name: ClassVar[str]
    metadata: ClassVar[Metadata]

    @dataclass(frozen=True, kw_only=True)
    class Options:
        """Options that change the data; each is part of a run's identity."""

    environments: tuple[str, ...]
    """The names of all environments."""
    test_environments: tuple[str, ...]
    """The environments that are held out as test environments by default."""
    validation_environments: tuple[str, ...] = ()
    """The environments that are held out for selection by default."""
    attributes: tuple[str, ...] = ()
    """The names of the values of the attribute that examples have, if they have one."""
    classes: tuple[str, ...] = ()
    """The names of the classes in the order of their numbers, if they have names."""
    input_shape: tuple[int, ...]
    task: Task

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        self.options = options
        self.data_dir = data_dir

    @abstractmethod
    def load(self, trial: int) -> dict[str, Environment]:
        """All environments by name, with the noise of a trial. Raises UserError for missing data."""

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """Return a change of all inputs that is estimated from a run's training examples alone.

        `training` holds the examples of the `in` split of each training environment, by name. The
        function returned maps inputs (N, ...) as `load` gives them, of any environment, to others
        (N, ...), such as standardised ones. Whatever is estimated from data belongs here: `load` does
        not know what a sweep holds out.
        """
        return lambda x: x

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map inputs (N, ...) of an environment to those of the network, (N, *input_shape).

        It runs on the device of `x`, and is where stored bytes become floats. `generator`, of the
        CPU, is there in training alone: the source of all chance in an augmentation.
        """
        return x

    def seed(self, trial: int, *names: object) -> int:
        """A seed for the noise of a trial, which no algorithm or hyperparameter changes."""
        return derive("data", self.name, trial, *names)


class FileDataset(Dataset):
    """A dataset whose examples come from files under the data directory."""

    @property
    def checksums(self) -> Mapping[str, str]:
        """The md5 of each file that is read with these options, as in `Metadata`."""
        return self.metadata.checksums

    def file(self, path: str) -> Path:
        """The data file `path` under the data directory; raises MissingError if it is not there."""
        command = self.command(self.data_dir or "DIR")
        if self.data_dir is None:
            needs = f"{self.name} needs --data-dir DIR; get the data with `{command}`"
            raise MissingError(needs, command)
        if not (file := self.data_dir / path).is_file():
            raise MissingError(f"{self.name}: {file} is missing; get it with `{command}`", command)
        return file

    def command(self, data_dir: object) -> str:
        """The command that fetches or makes the data, as a user types it."""
        verb = "download" if type(self).make is FileDataset.make else "make"
        return f"python -m oodbench.data {verb} {self.name} --data-dir {data_dir}"

    def check(self) -> None:
        """Raise UserError if a file of the data is missing or damaged; the plan of a sweep asks."""
        for path, checksum in self.checksums.items():
            file = self.file(path)
            if md5(file) != checksum:
                raise UserError(
                    f"{self.name}: {file} is damaged (its md5 is not {checksum}); "
                    f"`{self.command(self.data_dir)}` replaces it"
                )

    def download(self, data_dir: Path) -> None:
        """Fetch what is missing or damaged into `data_dir`; raises UserError where that cannot be."""
        if type(self).make is not FileDataset.make:
            raise UserError(f"{self.name} is made: `{self.command(data_dir)}`")
        raise UserError(f"{self.name} has nothing to download")

    def make(self, data_dir: Path, source: Path | None, workers: int) -> None:
        """Make what is missing or damaged in `data_dir`; raises UserError where that cannot be.

        `source` has what it is made of, where that was fetched elsewhere; `workers` processes.
        """
        raise UserError(f"{self.name} has nothing to make")

    def cache(self, workers: int) -> None:
        """Store what every run would compute again, such as decoded images, with `workers` threads."""
        raise UserError(f"{self.name} has nothing to cache")

    def read(self, files: Sequence[str | PathLike[str]]) -> Tensor:
        """The inputs (N, ...) of new files, as environments hold them; raises UserError.

        A trained model can be shown files by it, such as other images.
        """
        raise UserError(f"{self.name} cannot read new files: give a model the inputs themselves")


def permutation(dataset: Dataset, count: int, trial: int) -> Tensor:
    """The order, (count,), in which a trial deals examples out to its environments."""
    generator = torch.Generator().manual_seed(dataset.seed(trial, "permutation"))
    return torch.randperm(count, generator=generator)


def make(name: str, options: Mapping[str, object], data_dir: Path | None = None) -> Dataset:
    """The dataset `name` with `options` over its defaults; raises UserError for unknown ones."""
    cls: Any = datasets.get(name)
    values = {**defaults(cls.Options), **options}
    dataset: Dataset = cls(checked(cls.Options, values, f"the options of {name}"), data_dir)
    for attribute, wanted in {"environments": tuple, "input_shape": tuple, "task": Task}.items():
        value = inspect.getattr_static(dataset, attribute, None)
        # what a dataset computes may need its data, which the plan of a sweep asks for
        if not isinstance(value, (wanted, property, cached_property)):
            raise UserError(f"`{attribute}` of {name} is a {wanted.__name__}, not {value!r}")
    return dataset
