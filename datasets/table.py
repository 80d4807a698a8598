"""A user's table of inputs, targets and environments, in a file."""

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodbench.data.columns import EMPTY, IMPUTATIONS, Columns
from oodbench.data.facts import changed_options, labelled
from oodbench.datasets import Dataset, Environment, Metadata, md5, register
from oodbench.errors import UserError, unknown
from oodbench.hparams import hparam
from oodbench.tasks import Task

SPLITS = ("in", "out")
USUAL = ("target", "environment")
"""The columns that are looked for unless an option of the same name names another."""
FILL = (
    "the option `missing: median` (or mean) fills such cells by what a run trains on, and says where in an "
    "input of 0 and 1; or leave the row out"
)
OR_ELSE = (
    "; leave the cell empty if the number is missing, or name a column of categories in the option "
    "`categorical`"
)
MOST = 100
"""The most categories of a column: more are rather names or dates."""

Row = tuple[int, Sequence[str]]
"""A line number and the cells."""


class NumberedRows:
    """The rows of a file, each with the line that it ends on.

    A file whose name ends in .jsonl holds one JSON object a line, any other is CSV with a header. JSON's
    `null` is an empty cell, its other values are as Python prints them.
    """

    def __init__(self, path: Path) -> None:
        """Raises UserError, with the line, for a file that is neither."""
        self.path = path
        read = _objects if path.suffix == ".jsonl" else _cells
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                (self._header_line, self.columns), *rows = read(file, path)
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a text file: {error}") from error
        if not rows:
            raise UserError(f"{path} holds no row")
        self._lines, cells = zip(*rows, strict=True)
        self._texts = dict(zip(self.columns, zip(*cells, strict=True), strict=True))

    def place(self, row: int) -> str:
        """The file and the line of a row, for an error."""
        return f"{self.path}, line {self._lines[row]}"

    def cells(self, name: str) -> Sequence[str]:
        """The cells of a column, which may be empty; raises UserError if the column is missing."""
        if name not in self._texts:
            hint = f" (the option `{name}` names another)" if name in USUAL else ""
            place = f"{self.path}, line {self._header_line}"
            raise unknown("column", name, self.columns, place, hint)
        cells: Sequence[str] = self._texts[name]
        return cells

    def texts(
        self, name: str, remedy: str = "leave the row out, or fill the cell"
    ) -> Sequence[str]:
        """The cells of a column; raises UserError for an empty one, which ends with the `remedy`."""
        cells = self.cells(name)
        for row, cell in enumerate(cells):
            if not cell.strip():
                raise UserError(f"{self.place(row)}: '{name}' is empty; {remedy}")
        return cells

    def numbers(self, name: str, *, gaps: bool = False) -> npt.NDArray[np.float64]:
        """The cells of a column as numbers (N,), with `gaps` NaN where one is empty.

        Raises UserError for one that is not finite, and without `gaps` for an empty one.
        """
        cells = self.cells(name) if gaps else self.texts(name)
        numbers = np.array([_number(cell) for cell in cells])
        for row in map(int, np.flatnonzero(~np.isfinite(numbers))):
            if cells[row].strip():
                raise UserError(
                    f"{self.place(row)}: '{name}' must be a number, not '{cells[row]}'{OR_ELSE}"
                )
        return numbers

    def is_text(self, name: str) -> bool:
        """Whether cells of a column are filled, and none with a number."""
        filled = [cell for cell in self.cells(name) if cell.strip()]
        return bool(filled) and all(np.isnan(_number(cell)) for cell in filled)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _cells(file: Iterator[str], path: Path) -> Iterator[Row]:
    """The header and then the rows of a CSV file; empty lines are left out."""
    reader = csv.reader(file, strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            if cells and not header:
                header = cells = [name.strip() for name in cells]
                if len(set(header)) < len(header):
                    raise UserError(
                        f"{path}, line {reader.line_num}: two columns have the same name"
                    )
            if cells and len(cells) != len(header):
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells, "
                    f"but the header names {len(header)} columns"
                )
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from error
    if not header:
        raise UserError(f"{path} holds no row")


def _objects(file: Iterator[str], path: Path) -> Iterator[Row]:
    """The keys of the first object and then the rows of a JSON-lines file; all have these keys."""
    keys: list[str] = []
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {line} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {line} is not a JSON object")
        if not keys:
            keys = list(row)
            yield line, keys
        for key in row:
            if key not in keys:
                raise unknown("key", key, keys, f"{path}, line {line}")
        for key in keys:
            if key not in row:
                raise UserError(f"{path}, line {line} lacks '{key}'")
        yield line, ["" if row[key] is None else str(row[key]) for key in keys]
    if not keys:
        raise UserError(f"{path} holds no row")


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
        checksum = md5(self.path)
        if options.md5 not in ("", checksum):
            raise UserError(
                f"{self.path} has changed since these runs were planned (its md5 was {options.md5} "
                f"and is {checksum}); use another file name, or plan anew with another --out"
            )
        super().__init__(replace(options, md5=checksum), data_dir)
        self.rows = _rows(self.path, checksum)
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
        self.standardises_targets = options.kind == "real"
        self.split = self._split()
        self.attribute_of_rows: Tensor | None = None
        if options.attribute:
            texts = self.rows.texts(options.attribute)
            self.attributes = tuple(sorted(set(texts)))
            self.attribute_of_rows = _numbered(texts)

    @property
    def files_read(self) -> Collection[Path]:
        """The file."""
        return [self.path]

    @property
    def label(self) -> str:
        """The file's name and what else is not usual."""
        unsaid = ("file", "md5", "test_environments")
        changed = {k: v for k, v in changed_options(self).items() if k not in unsaid}
        return labelled(Path(self.options.file).stem, changed)

    def examples(self, inputs: Mapping[str, Any]) -> dict[str, Environment]:
        """The environments, given the inputs of each."""
        clusters = _numbered(self.rows.texts("group")) if "group" in self.rows.columns else None
        return {
            name: Environment(
                inputs[name],
                self.targets[index],
                None if clusters is None else clusters[index],
                None if self.split is None else self.split[index],
                None if self.attribute_of_rows is None else self.attribute_of_rows[index],
            )
            for name, index in self.places.items()
        }

    def _targets(self) -> tuple[Task, Tensor, tuple[str, ...]]:
        """The task, the targets of all rows and the names of the classes."""
        column = self.options.target
        if self.options.kind == "real":
            numbers = torch.from_numpy(self.rows.numbers(column))
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
def _rows(path: Path, md5: str) -> NumberedRows:
    """The rows of the file that has this md5."""
    return NumberedRows(path)


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
    """Columns of numbers and categories: numbers are standardised, categories one-hot.

    Numbers that are empty are filled by `missing`, and a further input of each such column is 1 where they
    were; an empty category is a category. All that is estimated comes from the rows that a run trains on.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Listed.Options):
        """The file and what its columns mean."""

        features: tuple[str, ...] = hparam(())
        """The columns of inputs; all that have no other meaning if none are given."""
        categorical: tuple[str, ...] = hparam((), neutral=())
        """The columns of inputs that are categories though they are numbers, such as codes; columns
        without a number are so anyway."""
        missing: str = hparam("", options=("", *IMPUTATIONS), neutral="")
        """The statistic that fills an empty cell of numbers: `median` or `mean` of the rows that a run
        trains on; where none is given, an empty cell is refused."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        usual = (options.target, options.environment, options.attribute, "split", "group")
        features = options.features or [n for n in self.rows.columns if n not in usual]
        if not features:
            raise UserError(f"{options.file} has no column of inputs")
        for name in options.categorical:
            if name not in features:
                raise unknown("column", name, features, f"`categorical`, {self.path}")
        table = {name: self._values(name) for name in features}
        numbers = [name for name in features if table[name].dtype != object]
        if not options.missing:
            for name in numbers:
                self.rows.texts(name, FILL)
        self.columns = Columns(
            numbers=tuple(numbers),
            gaps=tuple(name for name in numbers if np.isnan(table[name]).any()),
            categories={n: self._categories(n, table[n]) for n in features if n not in numbers},
            imputation=options.missing or IMPUTATIONS[0],
        )
        self.input_shape = (len(self.columns.inputs),)
        self.x = self.columns.encoded(table)

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments in the order of the file, as `Columns` encodes them, the same in every trial."""
        return self.examples({name: self.x[places] for name, places in self.places.items()})

    def fit(self, training: Mapping[str, Environment]) -> Callable[[Tensor], Tensor]:
        """A function that makes the rows inputs; a constant column of numbers is only centred."""
        known = torch.cat([environment.x for environment in training.values()])
        if not self.columns.is_numeric:
            return self.columns.fitted(known)
        mean, varies = known.mean(0), known.amin(0) < known.amax(0)
        scale = torch.where(varies, known.std(0, correction=0), 1.0)
        return lambda x: ((x - mean) / scale).float()

    def _values(self, name: str) -> npt.NDArray[Any]:
        """The cells of a column: floats with NaN in gaps, or the texts of categories."""
        if name not in self.options.categorical and not self.rows.is_text(name):
            return self.rows.numbers(name, gaps=True)
        return np.array([cell.strip() or EMPTY for cell in self.rows.cells(name)], dtype=object)

    def _categories(self, name: str, cells: npt.NDArray[Any]) -> tuple[str, ...]:
        categories = tuple(sorted(set(cells)))
        if len(categories) > MOST:
            raise UserError(
                f"{self.path}: '{name}' has {len(categories):,} categories, and a column may have {MOST}; "
                "name the columns of inputs in the option `features`"
            )
        return categories
