"""The interface of a dataset with environments, and the registry of the folder datasets/."""

import gzip
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from oodbench.errors import MissingError, UserError
from oodbench.hparams import checked, defaults
from oodbench.metrics import is_higher_better
from oodbench.registry import Registry, folder
from oodbench.seeds import derive
from oodbench.tasks import Task

__path__ = [str(folder("datasets"))]

datasets: Registry[type["Dataset"]] = Registry("dataset", "oodbench.datasets")
D = TypeVar("D", bound=type["Dataset"])


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The facts about a dataset that are known without reading it."""

    paper: str
    licence: str
    family: str
    """Datasets of a family share the defaults and ranges of hyperparameters."""
    shift: str
    """What changes between environments, in a few words."""
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
    groups: Tensor | None = None
    """(N,) integers: examples of a group stay on one side of a split. None: all differ."""
    out: Tensor | None = None
    """(N,) booleans: whether an example is of the `out` split. None: the split is drawn."""
    attributes: Tensor | None = None
    """(N,) integers from 0: the attribute of each example, by its place in `Dataset.attributes`."""


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
        """What changes the data; every option is part of a run's identity."""

    environments: tuple[str, ...]
    """The names of all environments."""
    test_environments: tuple[str, ...]
    """The environments that are held out as test environments by default."""
    validation_environments: tuple[str, ...] = ()
    """The environments that are held out for selection by default."""
    evaluation_environments: tuple[str, ...] = ()
    """The evaluation splits of data that came with their own: never trained on, whatever is held
    out. Where there are some, nothing else is scored unless held out, and there is no `out` split."""
    holdout: float = 0.2
    """The share of the `out` splits unless a sweep says otherwise."""
    attributes: tuple[str, ...] = ()
    """The names of the values of the attribute that examples have, if they have one."""
    classes: tuple[str, ...] = ()
    """The names of the classes in the order of their numbers, if they have names."""
    repeats: bool = False
    """Whether inputs repeat by design, within environments or across them; `data check` reports
    repeated inputs of other datasets."""
    input_shape: tuple[int, ...]
    task: Task
    normalization: Normalization | None = None
    """What the channels of images, from 0 to 1, are standardised with; None: they are not."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        self.options = options
        self.data_dir = data_dir
        self.given_label: str | None = None
        """The label that a sweep file gives the dataset, if it gives one."""
        self.given_training: Any = None
        """What a sweep file says of training on this dataset alone (`oodbench.sweep.file.Training`), if
        it says anything."""
        self.given_ceiling: Mapping[str, Any] = {}
        """The options that a sweep file gives the dataset for its ceilings (`Row.ceiling`)."""

    @property
    def label(self) -> str:
        """The dataset as tables call it: by the label that it was given, else by its name and the
        options that are not at their defaults.
        """
        if self.given_label is not None:
            return self.given_label
        usual = self.usual_options
        changed = {k: v for k, v in asdict(self.options).items() if v != usual[k]}
        return self.name + (f"({_words(changed)})" if changed else "")

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups of examples, by the numbers of `Task.groups`; none without attributes."""
        if not self.task.has_classes:
            return tuple(self.attributes)
        classes = self.classes or tuple(map(str, range(self.task.classes)))
        return tuple(f"{each}, {attribute}" for each in classes for attribute in self.attributes)

    @property
    def usual_options(self) -> Mapping[str, Any]:
        """The options that the label leaves out: the defaults."""
        return defaults(type(self.options))

    def run_options(self, pretrained: bool) -> dict[str, Any]:
        """The options as part of a run's identity, given whether its network is pretrained."""
        return asdict(self.options)

    @property
    def network(self) -> str:
        """The network that is trained unless a sweep names another."""
        return self.metadata.network

    @property
    def network_hparams(self) -> Mapping[str, Any]:
        """The hyperparameters of that network unless a sweep says otherwise."""
        return {}

    @property
    def metric(self) -> str:
        """The metric that selection and tables use unless they are told another."""
        return self.task.metric

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value of `metric` is the better one."""
        return is_higher_better(self.metric)

    def trained_on(self, held_out: Collection[str]) -> tuple[str, ...]:
        """The training environments when others are held out, in the dataset's order."""
        never = {*held_out, *self.evaluation_environments}
        return tuple(name for name in self.environments if name not in never)

    @abstractmethod
    def load(self, trial: int) -> dict[str, Environment]:
        """All environments by name, with the noise of a trial. Raises UserError for missing data."""

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """What is done to all inputs, worked out from the examples that a run trains on alone.

        `training` holds the examples of the `in` split of each training environment, by name. The
        function returned maps inputs (N, ...) as `load` gives them, of any environment, to others
        (N, ...), such as standardised ones. Whatever is estimated from data belongs here: `load` does
        not know what a sweep holds out.
        """
        return lambda x: x

    @property
    def checksums(self) -> Mapping[str, str]:
        """The md5 of each file that is read with these options, as in `Metadata`."""
        return self.metadata.checksums

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
        raise UserError(f"{self.name} has nothing to download")

    def split_metrics(self, environment: str, index: Tensor, logits: Tensor) -> dict[str, float]:
        """Metrics of a split that are no means over its examples, such as its worst group's.

        `index` (n,) are the split's examples in the environment, `logits` (n, ...) what the
        predictor gives for them, both on the CPU.
        """
        return {}

    @property
    def has_split_metrics(self) -> bool:
        """Whether `split_metrics` gives some."""
        return type(self).split_metrics is not Dataset.split_metrics

    def cache(self, workers: int) -> None:
        """Work out, with as many threads, what would be worked out in every run, and keep it on disk."""
        raise UserError(f"{self.name} has nothing to cache")

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Inputs (N, ...) of an environment to those of the network, (N, *input_shape).

        It runs on the device of `x`, and is where stored bytes become floats. `generator`, of the
        CPU, is there in training alone: the source of all chance in an augmentation.
        """
        return x

    def read(self, files: Sequence[str | PathLike[str]]) -> Tensor:
        """The inputs (N, ...) of new files, as environments hold them; raises UserError.

        It is there for datasets of files, such as images, so that a trained model can be shown others.
        """
        raise UserError(f"{self.name} is not made of files: give a model the inputs themselves")

    def predictor_metrics(
        self, predict: Callable[[Tensor], Tensor], trial: int
    ) -> dict[str, float]:
        """Metrics of the predictor as a whole, such as the error of its weights.

        `predict` maps inputs (N, *input_shape) to logits (N, C), both on the CPU.
        """
        return {}

    def seed(self, trial: int, *names: object) -> int:
        """A seed for the noise of a trial, which no algorithm or hyperparameter changes."""
        return derive("data", self.name, trial, *names)

    def permutation(self, count: int, trial: int) -> Tensor:
        """The order, (count,), in which a trial deals examples out to its environments."""
        generator = torch.Generator().manual_seed(self.seed(trial, "permutation"))
        return torch.randperm(count, generator=generator)

    def file(self, path: str) -> Path:
        """The data file `path` under the data directory; raises MissingError if it is not there."""
        if self.data_dir is None:
            command = self.command("DIR")
            raise MissingError(
                f"{self.name} needs --data-dir DIR; get the data with `{command}`", command
            )
        found = self.data_dir / path
        if not found.is_file():
            command = self.command(self.data_dir)
            raise MissingError(f"{self.name}: {found} is missing; get it with `{command}`", command)
        return found

    def command(self, data_dir: object) -> str:
        """The command that fetches or makes the data, as a user types it."""
        return f"python -m oodbench.data download {self.name} --data-dir {data_dir}"


def _words(options: Mapping[str, object]) -> str:
    return ", ".join(f"{k}={v}" for k, v in options.items())


def make(name: str, options: Mapping[str, object], data_dir: Path | None = None) -> Dataset:
    """The dataset `name` with `options` over its defaults; raises UserError for unknown ones."""
    cls: Any = datasets.get(name)
    values = {**defaults(cls.Options), **options}
    dataset: Dataset = cls(checked(cls.Options, values, f"the options of {name}"), data_dir)
    return dataset


def md5(file: Path) -> str:
    """The md5 of a file, as `Metadata.checksums` holds it: of what a .gz file unpacks to."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()
