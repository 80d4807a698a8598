"""A table in a file: its encoding, its separator, and its cells as texts."""

import codecs
import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from oodbench.errors import UserError, unknown

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
SAMPLE = 50
"""The number of first lines by which the separator is found."""
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
OTHERS = {b"PK\x03\x04": "an Excel workbook", b"PAR1": "a Parquet file", b"\x1f\x8b": "compressed"}
"""The first bytes of files that people give in place of a text."""
USUAL = ("target", "environment")
"""The columns that are looked for unless an option of the same name names another."""


class Cells:
    """The cells of a table, without the blanks around them.

    A file whose name ends in .jsonl holds one JSON object a line, any other is CSV with a header. JSON's
    `null` is an empty cell, its other values are as Python prints them. A CSV file is UTF-8, UTF-16 with a
    byte order mark, or else Windows' Western European (cp1252); columns are separated by what splits the
    first lines into most cells. `encoding` and `separator` say otherwise.
    """

    def __init__(self, path: Path, encoding: str = "", separator: str = "") -> None:
        """Raises UserError, with the line, for a file that is no table."""
        self.path = path
        self.notes: tuple[str, ...] = ()
        """How the file was read, where that is not as usual."""
        self.separator = ","
        self._lines: list[int] | None = None
        if path.suffix == ".jsonl":
            self._lines, names, columns = _objects(_decoded(path, encoding)[0], path)
        else:
            text, encoding = _decoded(path, encoding)
            separator = SEPARATORS.get(separator, separator)
            self.separator = separator or _found_separator(text)
            names, columns = _columns(text, self.separator, path)
            self.notes = tuple(_notes(encoding, self.separator))
            self._text = text
        if not columns or not len(columns[0]):
            raise UserError(f"{path} holds no row")
        self._columns = dict(zip(names, columns, strict=True))
        self.columns = tuple(names)

    def place(self, row: int) -> str:
        """Return the file and the line of a row, for an error."""
        if self._lines is None:
            self._lines = [line for line, _ in _rows(self._text, self.separator, self.path)][1:]
        return f"{self.path}, line {self._lines[row]}"

    def cells(self, name: str) -> pa.Array:
        """Return the cells of a column, which may be empty; raises UserError if there is none."""
        if name not in self._columns:
            hint = f" (the option `{name}` names another)" if name in USUAL else ""
            raise unknown("column", name, self.columns, f"{self.path}, line {self._header()}", hint)
        return self._columns[name]

    def texts(
        self, name: str, remedy: str = "leave the row out, or fill the cell"
    ) -> Sequence[str]:
        """Return the cells of a column; raises UserError, with the `remedy`, for an empty one."""
        cells = self.cells(name)
        row = pc.index(cells, "").as_py()
        if row >= 0:
            raise UserError(f"{self.place(row)}: '{name}' is empty; {remedy}")
        texts: list[str] = cells.to_pylist()
        return texts

    def _header(self) -> int:
        if self._lines is not None and self.path.suffix == ".jsonl":
            return self._lines[0]
        return next(_rows(self._text, self.separator, self.path))[0]


def _decoded(path: Path, encoding: str) -> tuple[str, str]:
    """Return the text of a file and its encoding, which is found unless it is given."""
    data = path.read_bytes()
    for start, what in OTHERS.items():
        if data.startswith(start):
            raise UserError(f"{path} is {what}, not a text: save it as CSV")
    marked = next((e for mark, e in BYTE_ORDER_MARKS.items() if data.startswith(mark)), "")
    try:
        for tried in [encoding] if encoding else [marked or "utf-8", "cp1252", "latin-1"]:
            try:
                text = data.decode(tried)
                break
            except UnicodeDecodeError as error:
                failed = error
        else:
            raise UserError(f"{path} is not a text in {encoding}: {failed}")
    except LookupError:
        raise UserError(f"there is no encoding '{encoding}' (the option `encoding`)") from None
    if "\0" in text:
        raise UserError(
            f"{path} is not a text file: it holds a zero byte; the option `encoding` helps"
        )
    return text, tried


def _notes(encoding: str, separator: str) -> Iterator[str]:
    if encoding not in ("utf-8", "utf-8-sig"):
        yield f"the file is no UTF-8 and was read as {encoding}; the option `encoding` says otherwise"
    if separator != ",":
        (name,) = (n for n, s in SEPARATORS.items() if s == separator) or (repr(separator),)
        yield f"columns are separated by a {name}; the option `separator` says otherwise"


def _found_separator(text: str) -> str:
    """Return the separator that splits the first lines into most cells, equally many each; or
    the header.
    """
    lines = "\n".join(text.splitlines()[:SAMPLE]) + "\n"
    best = (False, 1, ",")
    for separator in SEPARATORS.values():
        rows = [row for row in csv.reader(io.StringIO(lines), delimiter=separator) if row]
        if rows and len(rows[0]) > 1:
            complete = rows[: max(1, len(rows) - 1)]  # the last may be cut within quotes
            alike = all(len(row) == len(rows[0]) for row in complete)
            if (alike, len(rows[0])) > best[:2]:
                best = (alike, len(rows[0]), separator)
    return best[2]


def _columns(text: str, separator: str, path: Path) -> tuple[list[str], list[pa.Array]]:
    """Return the names and the cells of the columns of a CSV text."""
    if len(separator) != 1:
        raise UserError(f"a separator is one character, not '{separator}' (the option `separator`)")
    header = next(_rows(text, separator, path), (1, []))[1]
    if not header:
        raise UserError(f"{path} holds no row")
    names = _names([name.strip() for name in header], path)
    if text.count('"') % 2:  # arrow would take all up to the end for one cell
        _check(text, separator, path)
    data = text.encode()
    read = pa.csv.ReadOptions(
        use_threads=False, autogenerate_column_names=True, block_size=len(data) + 1
    )
    convert = pa.csv.ConvertOptions(
        column_types={f"f{i}": pa.string() for i in range(len(names))}, strings_can_be_null=False
    )
    parse = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        table = pa.csv.read_csv(io.BytesIO(data), read, parse, convert).slice(1)
    except pa.ArrowInvalid as error:
        _check(text, separator, path)
        raise UserError(f"{path}: {' '.join(str(error).split())[:160]}") from None
    return names, [_trimmed(column) for column in table.columns]


def _trimmed(column: pa.ChunkedArray) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(column)
    return trimmed.combine_chunks() if isinstance(trimmed, pa.ChunkedArray) else trimmed


def _names(header: Sequence[str], path: Path) -> list[str]:
    """Return the names of the columns, those without one as pandas calls them; raises UserError for equal
    ones.
    """
    names = [name or f"Unnamed: {i}" for i, name in enumerate(header)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise UserError(
                f"{path}: two columns have the same name, '{name}' (the {names.index(name) + 1}. and the "
                f"{i + 1}.); rename one"
            )
    return names


def _rows(text: str, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text that are not empty, each with the line that it ends on."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def _check(text: str, separator: str, path: Path) -> None:
    """Raise UserError, with the line, for quotes that do not end and rows of another length."""
    width = 0
    for line, cells in _rows(text, separator, path):
        width = width or len(cells)
        if len(cells) != width:
            raise UserError(
                f"{path}, line {line}: {len(cells)} cells, but the header names {width} columns"
            )


def _objects(text: str, path: Path) -> tuple[list[int], list[str], list[pa.Array]]:
    """Return the lines, the keys and the columns of JSON lines; all objects have the keys of the first."""
    lines, keys, rows = [], list[str](), []
    for line, each in enumerate(text.splitlines(), 1):
        if not each.strip():
            continue
        try:
            row = json.loads(each)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {line} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {line} is not a JSON object")
        keys = keys or list(row)
        for key in row:
            if key not in keys:
                raise unknown("key", key, keys, f"{path}, line {line}")
        for key in keys:
            if key not in row:
                raise UserError(f"{path}, line {line} lacks '{key}'")
        lines.append(line)
        rows.append(["" if row[key] is None else str(row[key]).strip() for key in keys])
    return lines, keys, [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
