"""The rows of a CSV or JSON-lines file, each with the line that it stands on."""

import csv
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from oodbench.errors import UserError, unknown

Row = tuple[int, Sequence[str]]
"""A line number and the cells."""


class NumberedRows:
    """Some columns of a file. JSON's `null` is an empty cell, its other values are as they print."""

    def __init__(self, path: Path, wanted: Callable[[Sequence[str]], Collection[str]]) -> None:
        """`wanted` picks columns from those of the file, all in order if it returns them all.

        A file whose name ends in .jsonl holds one JSON object a line, any other is CSV with a
        header. Raises UserError, with the line, for what is neither and for a column that is missing.
        """
        self.path = path
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                read = _objects if path.suffix == ".jsonl" else _cells
                rows = read(file, path)
                first, self.columns = next(rows)
                names = list(wanted(self.columns))
                for name in names:
                    if name not in self.columns:
                        raise unknown("column", name, self.columns, f"{path}, line {first}")
                places = [self.columns.index(name) for name in names]
                kept = [(line, [cells[p] for p in places]) for line, cells in rows]
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a text file: {error}") from error
        if not kept:
            raise UserError(f"{path} holds no row")
        self.lines = [line for line, _ in kept]
        self._values = dict(
            zip(names, zip(*(cells for _, cells in kept), strict=True), strict=True)
        )

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> str:
        """The file and the line of a row, for an error."""
        return f"{self.path}, line {self.lines[row]}"

    def texts(self, name: str) -> Sequence[str]:
        """The cells of a column; raises UserError for an empty one."""
        values: Sequence[str] = self._values[name]
        for row, value in enumerate(values):
            if not value.strip():
                raise UserError(f"{self.place(row)}: '{name}' is empty")
        return values

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """The cells of a column as numbers (N,); raises UserError for one that is not finite."""
        values = self.texts(name)
        found = np.array([_number(value) for value in values])
        wrong = np.flatnonzero(~np.isfinite(found))
        if len(wrong):
            row = int(wrong[0])
            raise UserError(f"{self.place(row)}: '{name}' must be a number, not '{values[row]}'")
        return found


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
