"""A table in a file: its encoding, its separator, and its cells as texts."""

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from oodbench.errors import UserError, unknown

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
SAMPLE = 50
"""The number of first lines by which the separator is found."""
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
OTHERS = {b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "compressed"}
"""The first bytes of files that people give in place of a text."""
USUAL = ("target", "environment")
"""The columns that are looked for unless an option of the same name names another."""


class Cells:
    """The cells of a table, without the blanks around them.

    A file whose name ends in .jsonl holds one JSON object a line, any other is CSV with a header. JSON's
    `null` is an empty cell, its other values are as Python prints them. A Parquet file, or a folder that
    Hugging Face's `Dataset.save_to_disk` wrote, has a cell of text for each of its values, as well; a class
    label is its name. A CSV file is UTF-8, UTF-16 with a
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
        self._types: dict[str, str] = {}
        """The columns whose values are no cells, such as pictures or lists."""
        self._counts = "line"
        if is_arrow(path):
            self._counts, table = "row", arrow_table(path)
            self._lines = list(range(1, len(table) + 1))
            texts = {name: _texts(table, name) for name in _names(table.column_names, path)}
            self._types = {
                n: str(table.schema.field(n).type) for n, text in texts.items() if text is None
            }
            empty = pa.nulls(len(table), pa.string()).fill_null("")
            names, columns = [*texts], [empty if t is None else t for t in texts.values()]
        elif path.suffix == ".jsonl":
            text, _ = _decoded(path, encoding)
            self._lines, names, columns, self._types = _objects(text, path)
        else:
            text, encoding = _decoded(path, encoding)
            if told := re.match(r"sep=(.)\r?(?=\n)", text):  # Excel's own line
                text, separator = text[told.end() :], separator or told[1]
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
        """The file and the line of a row, for an error."""
        if self._lines is None:
            self._lines = [line for line, _ in _rows(self._text, self.separator, self.path)][1:]
        return f"{self.path}, {self._counts} {self._lines[row]}"

    @property
    def texts_of_columns(self) -> Collection[pa.Array]:
        """The cells of all columns; those of values that are no cells are empty."""
        return self._columns.values()

    def cells(self, name: str) -> pa.Array:
        """The cells of a column, which may be empty; raises UserError if there is none."""
        if name not in self._columns:
            hint = f" (the option `{name}` names another)" if name in USUAL else ""
            if len(self.columns) == 1:
                hint = " (the option `separator` says what separates columns)"
            raise unknown("column", name, self.columns, self._header(), hint)
        if name in self._types:
            raise UserError(
                f"{self.path}: '{name}' holds values of type {self._types[name][:60]}, which are no "
                "numbers and no texts; name the columns of inputs in the option `features`"
            )
        return self._columns[name]

    def texts(self, name: str) -> Sequence[str]:
        """The cells of a column; raises UserError, with the line, for an empty one."""
        cells = self.cells(name)
        row = pc.index(cells, "").as_py()
        if row >= 0:
            what = f"{self.place(row)}: '{name}' is empty"
            raise UserError(f"{what}; leave the row out, or fill the cell")
        texts: list[str] = cells.to_pylist()
        return texts

    def _header(self) -> str:
        if is_arrow(self.path):
            return str(self.path)
        if self._lines is not None and self.path.suffix == ".jsonl":
            return self.place(0)
        return f"{self.path}, line {next(_rows(self._text, self.separator, self.path))[0]}"


def is_arrow(path: Path) -> bool:
    """Whether a table's columns have types: a Parquet file, or a folder of `save_to_disk`."""
    return path.is_dir() or path.suffix == ".parquet"


def table_files(path: Path) -> list[Path]:
    """The files that hold a table: a folder's that `save_to_disk` wrote, or the file itself.

    Raises UserError for another folder.
    """
    if not path.is_dir():
        return [path]
    state, splits = path / "state.json", path / "dataset_dict.json"
    if splits.is_file():
        found = ", ".join(sorted(each.name for each in path.iterdir() if each.is_dir()))
        raise UserError(f"{path} holds several splits; name the folder of one of them: {found}")
    try:
        return [path / each["filename"] for each in json.loads(state.read_text())["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no folder that `Dataset.save_to_disk` wrote") from None


def arrow_table(path: Path) -> pa.Table:
    """Read a Parquet file or a saved folder; class labels are replaced by their names.

    Raises UserError for what cannot be read.
    """
    try:
        if path.is_dir():
            parts = [
                pa.ipc.open_stream(pa.memory_map(str(f))).read_all() for f in table_files(path)
            ]
            table = pa.concat_tables(parts)
        else:
            table = pa.parquet.read_table(path)
        info = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())[:160]}") from None
    for name, feature in info.get("info", {}).get("features", {}).items():
        is_label = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        if is_label and name in table.column_names and pa.types.is_integer(table[name].type):
            numbers = table[name].combine_chunks()
            # -1 is a label that is unknown
            numbers = pc.if_else(pc.less(numbers, 0), None, numbers)
            column = pc.take(pa.array(feature["names"], pa.string()), numbers)
            table = table.set_column(table.column_names.index(name), name, column)
    return table


def _texts(table: pa.Table, name: str) -> pa.Array | None:
    column = table[name]
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column.cast(pa.float64()))
    elif pa.types.is_boolean(column.type):
        column = pc.if_else(column, "True", "False")
    try:
        return _trimmed(column.cast(pa.string()).fill_null(""))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None


def _decoded(path: Path, encoding: str) -> tuple[str, str]:
    data = path.read_bytes()
    for start, what in OTHERS.items():
        if data.startswith(start):
            if b"xl/workbook" in data:
                raise UserError(f"{path} is an Excel workbook, not a text: save it as CSV")
            raise UserError(f"{path} is {what}, not a text: unpack it")
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
    return text.removeprefix("\ufeff"), tried


def _notes(encoding: str, separator: str) -> Iterator[str]:
    if encoding not in ("utf-8", "utf-8-sig"):
        yield f"the file is no UTF-8 and was read as {encoding}; the option `encoding` changes that"
    if separator != ",":
        (name,) = (n for n, s in SEPARATORS.items() if s == separator) or (repr(separator),)
        yield f"columns are separated by a {name}; the option `separator` changes that"


def _found_separator(text: str) -> str:
    """The one that splits the first lines into most cells, equally many each, or else the header."""
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
    names = [name or f"Unnamed: {i}" for i, name in enumerate(header)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise UserError(
                f"{path}: two columns have the same name, '{name}' (the {names.index(name) + 1}. and the "
                f"{i + 1}.); rename one"
            )
    return names


def _rows(text: str, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None


def _check(text: str, separator: str, path: Path) -> None:
    width = 0
    for line, cells in _rows(text, separator, path):
        width = width or len(cells)
        if len(cells) != width:
            raise UserError(
                f"{path}, line {line}: {len(cells)} cells, but the header names {width} columns"
            )


def _objects(text: str, path: Path) -> tuple[list[int], list[str], list[pa.Array], dict[str, str]]:
    """Lines, keys, columns, and the keys with lists or objects; all objects have the keys of the first."""
    lines, keys, rows, types = [], list[str](), [], dict[str, str]()
    for line, each in enumerate(text.split("\n"), 1):
        if not each.strip():
            continue
        try:
            row = json.loads(each, object_pairs_hook=_object)
        except ValueError as error:
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
        types |= {key: type(v).__name__ for key, v in row.items() if isinstance(v, list | dict)}
        lines.append(line)
        rows.append(["" if row[key] is None else str(row[key]).strip() for key in keys])
    return lines, keys, [pa.array(column, pa.string()) for column in zip(*rows, strict=True)], types


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    if len(found := dict(pairs)) < len(pairs):
        (twice, _) = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key '{twice}' is there twice")
    return found
