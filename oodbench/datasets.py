"""The interface of a dataset with environments, and the registry of the folder datasets/."""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from oodbench.columns import Columns, Reading
from oodbench.errors import MissingError, UserError
from oodbench.hparams import checked, defaults
from oodbench.identity import md5 as md5  # for datasets of files
from oodbench.metrics import known_direction
from oodbench.registry import Registry, check_attributes, folder, is_read, own_members
from oodbench.seeds import derive
from oodbench.tasks import Task

__path__ = [str(folder("datasets"))]

datasets: Registry[type["Dataset"]] = Registry("dataset", "oodbench.datasets.Dataset")
D = TypeVar("D", bound=type["Dataset"])


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """Facts about a dataset that need no data."""

    paper: str = "none"
    licence: str = "none"
    family: str = "own"
    """The family, whose datasets share the defaults and ranges of hyperparameters."""
    shift: str = "none"
    """What changes between environments, in a few words."""
    network: str = "MLP"
    """The network that is trained unless a sweep names another."""
    steps: int = 2000
    """The number of updates of a run unless a sweep says otherwise."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """The md5 of each file that is read, by its path under the data directory."""
    folder: str = ""
    """The folder under the data directory with the files that have no checksum here."""
    hparams: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of methods' hyperparameters on this dataset, instead of the family's."""

    def __new__(cls, **given: object) -> "Metadata":
        """Raise UserError for what plug-ins of 0.4 gave."""
        if given.keys() & {"half", "shift_kind"}:
            raise UserError(
                "`half` and `shift_kind` are no longer given to Metadata: leave them out; a board names "
                "the datasets of each half in its folder, in halves.yaml (`natural: [LABEL, ...]`)"
            )
        return super().__new__(cls)


@dataclass(frozen=True)
class Environment:
    """The examples of one environment.

    - `x`: inputs, a tensor (N, ...) or `oodbench.data.streams.Stored`, which `Dataset.transform` maps to
      (N, *input_shape).
    - `y`: targets: (N,) floats 0 and 1 for `binary`, (N,) int64 classes for `multiclass`, else see `Task`.
    - `clusters`: (N,) integers: a split keeps examples of one cluster together. None: no clusters.
    - `out`: (N,) booleans: whether an example is in the `out` split. None: the split is drawn.
    - `attributes`: (N,) integers from 0: the position of each example's attribute in `Dataset.attributes`.
    - `unseen`: (N,) booleans: examples with true are used only if the environment is held out, the others
      only if it is trained on, so that runs are tested on unseen people or things. None: all in both cases.
    """

    x: Any
    y: Tensor
    clusters: Tensor | None = None
    out: Tensor | None = None
    attributes: Tensor | None = None
    unseen: Tensor | None = None


PLAIN = Metadata()


def register(name: str, metadata: Metadata = PLAIN) -> Callable[[D], D]:
    """Register a dataset; raises UserError for a class with unread attributes that `metadata` holds."""

    def decorate(cls: D) -> D:
        own = own_members(cls)
        facts = own.keys() & {"family", "hparams", "licence", "paper", "shift", "steps"}
        for fact in (f for f in sorted(facts) if not callable(own[f]) and not is_read(f, own)):
            raise UserError(
                f"the dataset {cls.__name__} sets `{fact}`, which is not read there: write "
                f"`@register({name!r}, Metadata({fact}=...))` (`_{fact}` is free for your own use)"
            )
        cls.name, cls.metadata = name, metadata
        datasets.add(name)(cls)
        return cls

    return decorate


class Normalization(NamedTuple):
    """The mean and standard deviation of each channel, by which images are standardised."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @lru_cache  # noqa: B019 (it has no more to free than a few numbers)
    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Means and deviations (C, 1, 1) on a device, to which they are copied once."""
        mean, std = (torch.tensor(v, device=device)[:, None, None] for v in self)
        return mean, std


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The mean and standard deviation of ImageNet's images, by channel."""


class Dataset(ABC):
    """A set of named environments.

    A subclass sets `environments` and `test_environments` (tuples of names), `input_shape` and `task`, and
    defines `load`; all else has a default. Attributes are set on the class or in the constructor, or
    computed as properties. The constructor reads data only if an attribute depends on them.
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
    """Names of the attribute's values; empty if examples have no attribute."""
    classes: tuple[str, ...] = ()
    """Class names in the order of the labels; empty if classes have no names."""
    input_shape: tuple[int, ...]
    """The shape of an input of the network, without the batch."""
    task: Task
    """What is predicted, with which loss and metrics."""
    holdout: float = 0.2
    """The share of the `out` splits unless a sweep says otherwise."""
    repeats: bool = False
    """Whether inputs repeat by design, so that an audit does not report them."""
    cluster_names: Sequence[str] = ()
    """The names of clusters, by their numbers in `Environment.clusters`; empty if they have no names."""
    separates_clusters: bool = False
    """Whether training examples are left out if a held-out environment has examples of the same cluster."""
    standardises_targets: bool = False
    """Whether runs train on real targets in standard units of their training environments.

    Metrics and predictions keep the targets' units. Leave it off if the units have a meaning, as in a
    structural equation model."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        self.options = options
        self.data_dir = data_dir

    @cached_property
    def options(self) -> Any:
        """The values of the class's `Options`."""
        init = f"`__init__` of the dataset {type(self).__name__}"
        raise UserError(f"{init} must first call `super().__init__(options, data_dir)`")

    @cached_property
    def label(self) -> str:
        """The name in tables; by default it lists the options that differ from their defaults."""
        return labelled(self.name, self.changed_options)

    @cached_property
    def network(self) -> str:
        """The network that is trained unless a sweep names another."""
        return self.metadata.network

    @cached_property
    def network_hparams(self) -> Mapping[str, Any]:
        """Hyperparameters of that network unless a sweep sets them."""
        return MappingProxyType({})

    @cached_property
    def metric(self) -> str:
        """The metric of selection and tables unless a sweep names another: the task's."""
        return self.task.metric

    @cached_property
    def higher_is_better(self) -> bool:
        """Whether a larger `metric` is better; raises UserError for a metric that is not registered."""
        return known_direction(self.metric)

    @cached_property
    def evaluation_environments(self) -> tuple[str, ...]:
        """Environments that are published for evaluation only, and never trained on.

        If there are any, only they and held-out environments are scored, and there is no `out` split.
        """
        return ()

    @cached_property
    def normalization(self) -> Normalization | None:
        """The moments by which `transform` standardises the channels of images in [0, 1], if it does."""
        return None

    @cached_property
    def columns(self) -> Columns | None:
        """The columns of a table that inputs are made of; None for other data."""
        return None

    @cached_property
    def readings(self) -> Sequence[Reading]:
        """What each column of a table is read as, and why; empty for other data."""
        return ()

    @cached_property
    def notes(self) -> Sequence[str]:
        """Sentences on what is unusual in how the data are read, for `data check` and plans."""
        return ()

    @cached_property
    def files_read(self) -> Collection[Path]:
        """Files and folders that are read without a checksum; of a folder only its names count.

        If one of them changes, earlier runs become stale.
        """
        return ()

    @cached_property
    def checksums(self) -> Mapping[str, str]:
        """The md5 of each file that is read with these options, by its path, as in `Metadata`."""
        return self.metadata.checksums

    @property
    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        usual = defaults(type(self.options))
        return {k: v for k, v in asdict(self.options).items() if v != usual[k]}

    def resolved_options(self, pretrained: bool) -> dict[str, Any]:
        """The values in a run's identity of options that the dataset resolves, such as "fit the files".

        `pretrained` says whether the run's network is.
        """
        return {}

    def check(self) -> None:  # noqa: B027 (most datasets have no files)
        """Raise UserError if a file is missing or damaged; called when a sweep is planned."""

    @abstractmethod
    def load(self, trial: int) -> dict[str, Environment]:
        """All environments by name, with the noise of a trial. Raises UserError for missing data."""

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """A map of all inputs that is estimated from a run's training examples alone.

        `training` holds the examples of the `in` split of each training environment, by name. The returned
        function maps inputs (N, ...) of any environment, as `load` gives them, to new inputs (N, ...), such
        as standardised ones. All statistics that are estimated from data belong here, since `load` does not
        know what a sweep holds out.
        """
        return lambda x: x

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map inputs (N, ...) of an environment to those of the network, (N, *input_shape).

        It runs on the device of `x`, and turns stored bytes into floats. `generator`, on the CPU, is given
        only in training: the only source of random numbers for an augmentation.
        """
        return x

    def split_metrics(self, environment: str, index: Tensor, logits: Tensor) -> dict[str, float]:
        """Metrics of a split other than means over its examples.

        `index` (n,) has the positions of the split's examples in the environment, and `logits` (n, ...)
        their predictions, both on the CPU.
        """
        return {}

    def predictor_metrics(
        self, predict: Callable[[Tensor], Tensor], trial: int
    ) -> dict[str, float]:
        """Metrics of the predictor as a whole, such as the error of its weights.

        `predict` maps inputs (N, *input_shape) to logits (N, C), both on the CPU.
        """
        return {}

    def trainable(self, held_out: Collection[str]) -> tuple[str, ...]:
        """The environments to train on when others are held out, in the dataset's order."""
        never = {*held_out, *self.evaluation_environments}
        return tuple(name for name in self.environments if name not in never)

    def seed(self, trial: int, *names: object) -> int:
        """A seed for the noise of a trial, which no algorithm or hyperparameter changes."""
        return derive("data", self.name, trial, *names)

    def generator(self, trial: int, *names: object) -> torch.Generator:
        """A generator on the CPU with the `seed` of a trial."""
        return torch.Generator().manual_seed(self.seed(trial, *names))


class FileDataset(Dataset):
    """A dataset whose examples come from files under the data directory."""

    options_of_files: ClassVar[Sequence[str]] = ()
    """The options that determine which files are needed; `command` includes those with changed values."""

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
        changed = self.changed_options
        named = [f" --set {n}={changed[n]}" for n in self.options_of_files if n in changed]
        return f"python -m oodbench.data {verb} {self.name} --data-dir {data_dir}{''.join(named)}"

    def check(self) -> None:
        """Raise UserError if a file is missing or does not match its checksum."""
        for path, checksum in self.checksums.items():
            if md5(file := self.file(path)) != checksum:
                raise UserError(
                    f"{self.name}: {file} is damaged (its md5 is not {checksum}); "
                    f"`{self.command(self.data_dir)}` replaces it"
                )

    def download(self, data_dir: Path) -> None:
        """Fetch what is missing or damaged into `data_dir`; raises UserError if that is impossible."""
        if type(self).make is not FileDataset.make:
            raise UserError(f"{self.name} is made: `{self.command(data_dir)}`")
        raise UserError(f"{self.name} has nothing to download")

    def make(self, data_dir: Path, source: Path | None, workers: int) -> None:
        """Make what is missing or damaged in `data_dir`; raises UserError if that is impossible.

        `source` has the packages from which the data are made, if they were fetched elsewhere; `workers` is
        the number of processes.
        """
        raise UserError(f"{self.name} has nothing to make")

    def cache(self, workers: int) -> None:
        """Store what every run would compute again, such as decoded images, with `workers` threads."""
        raise UserError(f"{self.name} has nothing to cache")

    def read(self, files: Sequence[str | PathLike[str]]) -> Tensor:
        """The inputs (N, ...) of new files, in the form that environments have, for a trained model.

        Raises UserError for files that cannot be read.
        """
        raise UserError(f"{self.name} cannot read new files: give a model the inputs themselves")


class SampledDataset(FileDataset):
    """A dataset of files without published checksums."""

    def check(self) -> None:
        """Load the environments, and read an example of each."""
        for environment in self.load(0).values():
            environment.x.read(torch.tensor([0]))


def require_files(dataset: Dataset) -> FileDataset:
    """The dataset, typed as `FileDataset`; raises UserError if it is not made of files."""
    if not isinstance(dataset, FileDataset):
        raise UserError(
            f"{dataset.name} is not made of files: it has nothing to download, to cache or to read"
        )
    return dataset


def labelled(name: str, options: Mapping[str, object]) -> str:
    """A name with options in parentheses, if there are any."""
    return name + (f"({', '.join(f'{k}={v}' for k, v in options.items())})" if options else "")


NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?%?")
"""The names of environments that are sorted as numbers."""


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names in natural order: numbers by their value, and other names by the numbers in them."""
    every = list(names)
    if all(NUMBER.fullmatch(name) for name in every):
        return sorted(every, key=lambda name: (float(name.rstrip("%")), name))
    return sorted(every, key=lambda name: (_pieces(name), name))


def _pieces(name: str) -> list[tuple[int, str]]:
    # longer numbers, without leading zeros, are larger
    split = re.split("([0-9]+)", name.casefold())
    texts = [text.lstrip("0") if i % 2 else text for i, text in enumerate(split)]
    return [(len(text) if i % 2 else 0, text) for i, text in enumerate(texts)]


def permutation(dataset: Dataset, count: int, trial: int) -> Tensor:
    """The random order, (count,), in which a trial assigns examples to environments."""
    return torch.randperm(count, generator=dataset.generator(trial, "permutation"))


def dealt(dataset: Dataset, count: int, trial: int) -> dict[str, Tensor]:
    """Indices (n,) of the examples of each environment, among which a trial divides `count` examples."""
    order, parts = permutation(dataset, count, trial), len(dataset.environments)
    return {name: order[i::parts] for i, name in enumerate(dataset.environments)}


def numbered_environments(
    dataset: Dataset, option: str, is_valid: bool = True, where: str = "", least: int = 2
) -> tuple[str, ...]:
    """Environments named by an option's numbers; raises UserError unless they are distinct and valid."""
    numbers = getattr(dataset.options, option)
    names = tuple(f"{number:g}" for number in numbers)
    if len(set(names)) < max(least, len(names)) or not is_valid:
        raise UserError(
            f"'{option}' in the options of {dataset.name} must be at least {least} distinct numbers"
            f"{where}, not {list(numbers)}"
        )
    return names


REQUIRED: Mapping[str, tuple[type, str]] = {
    "environments": (tuple, "the names of all environments, such as ('a', 'b', 'c')"),
    "test_environments": (tuple, "the names of environments held out by default, such as ('c',)"),
    "input_shape": (tuple, "the shape of one input, such as (2,)"),
    "task": (Task, "what is predicted, such as Task('binary')"),
}
"""The attributes that every dataset sets, with their types and meanings."""


def make(name: str, options: Mapping[str, object], data_dir: Path | None = None) -> Dataset:
    """The dataset `name` with `options` over its defaults; raises UserError for unknown ones."""
    cls: Any = datasets.get(name)
    values = {**defaults(cls.Options), **options}
    dataset: Dataset = cls(checked(cls.Options, values, f"the options of {name}"), data_dir)
    check_attributes("dataset", dataset)
    for attribute, (wanted, held) in REQUIRED.items():
        value = inspect.getattr_static(dataset, attribute, None)
        if value is None:
            raise UserError(f"the dataset {cls.__name__} does not set `{attribute}`, {held}")
        # a property may need data, whose absence the plan of a sweep reports
        if not isinstance(value, (wanted, property, cached_property)):
            raise UserError(f"`{attribute}` of {name} must be a {wanted.__name__}, not {value!r}")
    return dataset
