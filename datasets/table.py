"""Data of one's own that fit into a file: a table of numbers with targets and environments."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodbench.data.csv_rows import NumberedRows
from oodbench.data.facts import changed_options, labelled
from oodbench.datasets import Dataset, Environment, Metadata, md5, register
from oodbench.errors import UserError, unknown
from oodbench.hparams import hparam
from oodbench.tasks import Task

SPLITS = ("in", "out")


class Listed(Dataset):
    """Examples that a CSV or JSON-lines file lists, one a row, with a target and an environment.

    A column `split` (`in` or `out`) replaces the drawn split; rows that share a value of a column
    `group` stay on one side of a drawn one. All trials have the same data.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """The file and what its columns mean."""

        file: str = hparam("")
        """The file's path under the data directory, or else under the working directory."""
        md5: str = hparam("")
        """The md5 of the file, so that other contents make other runs; it is taken from the file if not
        given."""
        target: str = hparam("target")
        """The column of targets."""
        kind: str = hparam("class", options=("class", "real"))
        """Whether targets are names of classes or real numbers."""
        environment: str = hparam("environment")
        """The column of the environments' names."""
        attribute: str = hparam("", neutral="")
        """The column of the examples' attribute, if there is one."""
        test_environments: tuple[str, ...] = hparam(())
        """The default test environments; the file's last one if none are given."""

    options: Any

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        """Read the file's rows. Raises UserError, with the line, for what cannot be used."""
        if not options.file:
            raise UserError(f"{self.name} needs a file: give the dataset's option `file`")
        self.path = (data_dir or Path()) / options.file
        if not self.path.is_file():
            raise UserError(f"{self.name}: there is no file {self.path}")
        found = md5(self.path)
        if options.md5 not in ("", found):
            raise UserError(
                f"{self.path} has changed since these runs were planned (its md5 was {options.md5} "
                f"and is {found}); use another file name, or plan anew with another --out"
            )
        super().__init__(replace(options, md5=found), data_dir)
        self.rows = _rows(type(self), self.options, self.path)
        names = np.array(self.rows.texts(options.environment))
        self.places = {
            name: torch.from_numpy(np.flatnonzero(names == name))
            for name in dict.fromkeys(names.tolist())
        }
        """The rows of each environment, in the order of the file."""
        self.environments = tuple(self.places)
        for name in options.test_environments:
            if name not in self.environments:
                raise unknown(
                    "environment", name, self.environments, f"test_environments, {self.path}"
                )
        self.test_environments = options.test_environments or self.environments[-1:]
        self.task, self.targets, self.classes = self._targets()
        self.split = self._split()
        self.attribute_of_rows: Tensor | None = None
        if options.attribute:
            texts = self.rows.texts(options.attribute)
            self.attributes = tuple(sorted(set(texts)))
            self.attribute_of_rows = _numbered(texts)

    @property
    def label(self) -> str:
        """The file's name and what else is not usual."""
        unsaid = ("file", "md5", "test_environments")
        changed = {k: v for k, v in changed_options(self).items() if k not in unsaid}
        return labelled(Path(self.options.file).stem, changed)

    @classmethod
    @abstractmethod
    def columns(cls, options: Any, known: Sequence[str]) -> Collection[str]:
        """The columns to read besides those that all files have, of all `known` ones."""

    def examples(self, inputs: Mapping[str, Any]) -> dict[str, Environment]:
        """The environments, given the inputs of each."""
        groups = _numbered(self.rows.texts("group")) if "group" in self.rows.columns else None
        return {
            name: Environment(
                inputs[name],
                self.targets[index],
                None if groups is None else groups[index],
                None if self.split is None else self.split[index],
                None if self.attribute_of_rows is None else self.attribute_of_rows[index],
            )
            for name, index in self.places.items()
        }

    def _targets(self) -> tuple[Task, Tensor, tuple[str, ...]]:
        """The task, the targets of all rows and the names of the classes."""
        column = self.options.target
        if self.options.kind == "real":
            numbers = torch.from_numpy(self.rows.numbers(column)).float()
            return Task("regression"), numbers.unsqueeze(1), ()
        texts = self.rows.texts(column)
        classes = _numbered(texts)
        for name, places in self.places.items():
            if len(set(classes[places].tolist())) < 2:
                raise UserError(
                    f"{self.rows.place(int(places[0]))}: environment '{name}' has one class only, "
                    f"'{texts[int(places[0])]}'"
                )
        names = tuple(sorted(set(texts)))
        if len(names) == 2:
            return Task("binary"), classes.float(), names
        return Task("multiclass", len(names)), classes, names

    def _split(self) -> Tensor | None:
        if "split" not in self.rows.columns:
            return None
        texts = self.rows.texts("split")
        for row, text in enumerate(texts):
            if text not in SPLITS:
                raise unknown("split", text, SPLITS, self.rows.place(row))
        return torch.tensor([text == "out" for text in texts])


@lru_cache(maxsize=2)
def _rows(cls: type[Listed], options: Any, path: Path) -> NumberedRows:
    """The rows of a file with the md5 in `options`."""

    def wanted(known: Sequence[str]) -> list[str]:
        usual = [options.target, options.environment, *({"split", "group"} & {*known})]
        usual += [options.attribute] * bool(options.attribute)
        return list(dict.fromkeys([*usual, *cls.columns(options, known)]))

    return NumberedRows(path, wanted)


def _numbered(texts: Sequence[str]) -> Tensor:
    """Each text's place among the sorted ones, (N,)."""
    numbers = {text: number for number, text in enumerate(sorted(set(texts)))}
    return torch.tensor([numbers[text] for text in texts])


@register(
    "Table",
    Metadata(
        paper="none",
        licence="the file's",
        family="tabular",
        shift="the file's",
        network="MLP",
        steps=2000,
    ),
)
class Table(Listed):
    """Columns of numbers, (number of columns,), standardised.

    Mean and standard deviation are those of the rows that a run trains on.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Listed.Options):
        """The file and what its columns mean."""

        features: tuple[str, ...] = hparam(())
        """The columns of inputs; all that have no other meaning if none are given."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.features = self.columns(self.options, self.rows.columns)
        self.input_shape = (len(self.features),)
        columns = [self.rows.numbers(name) for name in self.features]
        self.x = torch.from_numpy(np.stack(columns, 1))

    @classmethod
    def columns(cls, options: Any, known: Sequence[str]) -> Sequence[str]:
        """The columns of inputs: the option `features`, or all that have no other meaning."""
        usual = (options.target, options.environment, options.attribute, "split", "group")
        found: Sequence[str] = options.features or [name for name in known if name not in usual]
        if not found:
            raise UserError(f"{options.file} has no column of inputs")
        return found

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments in the order of the file, not standardised, the same in every trial."""
        return self.examples({name: self.x[places] for name, places in self.places.items()})

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """A function that standardises each column, or only centres it where it is constant."""
        known = torch.cat([environment.x for environment in training.values()])
        mean, varies = known.mean(0), known.amin(0) < known.amax(0)
        scale = torch.where(varies, known.std(0, correction=0), 1.0)
        return lambda x: ((x - mean) / scale).float()
