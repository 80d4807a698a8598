"""The cells of a table in a file, as texts; encoding, separator and header are detected."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from oodbench.data.tables.typed import (
    ARROW,
    LINES,
    Read,
    arrow_table,
    read_json,
    read_table,
    table_files,
)
from oodbench.errors import UserError, counted, unknown
from oodbench.files import require_data

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "blank": " "}
SAMPLE, LONG = 200, 10**6
"""The separator and the header are detected in the first 200 lines or million characters."""
BLANKS = "".join(filter(str.isspace, map(chr, range(2**16)))) + "\u200b\u200e\u200f\u2060\ufeff"
"""Characters that are stripped from names and cells: white space and invisible characters."""
NUMBER = re.compile(r"\s*[-+]?[\d.,]*\d([eE][-+]?\d+)?\s*")
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
JSON = re.compile(r'\s*\[?\s*\{\s*["}]')
"""The beginning of JSON."""
UNREAD = (
    *"7z accdb arff avro db dta fits h5 hdf5 mat mdb nc npy npz numbers ods orc pickle pkl rar".split(),
    *"rdata rds sas7bdat sav sqlite sqlite3 tar tar.gz tgz xls xlsb xlsm xlsx xpt".split(),
)
"""The endings of formats that are not read."""
PACKED: dict[bytes, Callable[[bytes], bytes]] = {
    rb"\x1f\x8b": gzip.decompress,
    rb"BZh\d1AY&SY": bz2.decompress,
    rb"\xfd7zXZ\0": lzma.decompress,
    rb"\x28\xb5\x2f\xfd": lambda data: pa.input_stream(pa.py_buffer(data), "zstd").read(),
}
"""Functions that decompress a file, by the pattern of its first bytes."""
DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, RuntimeError)
"""The errors of decompression."""
FORMS = "save the table as CSV, JSON, Parquet or Feather"
OTHERWISE = "leave the column out by the option `features`, which names the columns of inputs"
OF_TYPES = {
    "binary": f"pictures are read by the dataset `HuggingFace`; otherwise {OTHERWISE}",
    "list": "save each number in a column of its own (several labels per example need a dataset with "
    f"the task `multilabel`), or {OTHERWISE}",
}
"""Hints on values that are neither numbers nor texts, by a word in the name of their type."""
USUAL = ("target", "environment", "text")
"""Options whose default is the column of the same name."""


@contextmanager
def _of_any_length() -> Iterator[None]:
    """Let Python's reader of CSV take cells of more than its 131,072 characters meanwhile."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


class Cells:
    """The cells of a table as texts, without white space around them.

    JSON, Parquet and Arrow values are written as Python prints them. Any other file is read as CSV with a
    header, in UTF-8, UTF-16, UTF-32, or else cp1252 (Western European Windows). The separator is the one
    that splits the first lines into the most cells. Lines above the header, which begin with # or have
    another number of cells, are left out.
    """

    def __init__(
        self, path: Path, encoding: str = "", separator: str = "", table: pa.Table | None = None
    ) -> None:
        """Read the file at `path`, or take the contents of `table`, which errors then call `path`.

        `encoding` and `separator` replace the detected ones. Raises UserError, with the line, for a file
        that is not a table.
        """
        self.path, self.separator, self.is_text = path, ",", False
        read = self._read_file(encoding, separator) if table is None else read_table(table)
        if not read.names or not len(read.columns[0]):
            raise UserError(f"{path} holds no row")
        self.columns = tuple(name or f"Unnamed: {i}" for i, name in enumerate(read.names))
        for i, name in enumerate(self.columns):
            if (first := self.columns.index(name)) < i:
                which = f"'{name}' (the {first + 1}. and the {i + 1}.)"
                raise UserError(f"{path}: two columns have the same name, {which}; rename one")
        self._read = read
        self.notes = read.notes
        """Sentences on what was unusual about the file."""
        trimmed = [_trimmed(column).combine_chunks() for column in read.columns]
        self._columns = dict(zip(self.columns, trimmed, strict=True))

    def _read_file(self, encoding: str, separator: str) -> Read:
        files = table_files(self.path)
        for file in files:
            require_data(file)
        if not self.path.is_file() or self.path.suffix.lower() in ARROW:
            note = f"{len(files)} files are read as one table: {files[0]} to {files[-1]}"
            return read_table(arrow_table(self.path))._replace(notes=(note,) * (len(files) > 1))
        text, found = _decoded(self.path, encoding)
        if self.path.suffix.lower() in (".json", *LINES) or JSON.match(text):
            return read_json(text, self.path)
        self.is_text = True
        return self._read_csv(text, found, separator)

    @_of_any_length()
    def _read_csv(self, text: str, encoding: str, separator: str) -> Read:
        if excel := re.match(r"sep=(.)\r?(?=\n)", text):  # Excel's own header line
            text, separator = text[excel.end() :], separator or excel[1]
        separator = SEPARATORS.get(separator, separator)
        if len(separator) > 1:
            known = ", ".join(SEPARATORS)
            raise UserError(
                f"the option `separator` must be a character or {known}, not '{separator}'"
            )
        text, self.separator, above = _from_header(text, separator)
        text = _with_all_names(text, self.separator)
        notes = []
        if encoding not in ("utf-8", "utf-8-sig"):
            notes.append(
                f"the file is not UTF-8 and was read as {encoding}; the option `encoding` changes that"
            )
        if self.separator != ",":
            named = {s: name for name, s in SEPARATORS.items()}
            what = named.get(self.separator, repr(self.separator))
            notes.append(f"columns are separated by a {what}; the option `separator` changes that")
        if above:
            notes.append(f"lines 1 to {above} stand above the header and are left out")

        @_of_any_length()
        def place(row: int) -> str:
            line, _ = next(islice(_rows(text, self.separator, self.path), row + 1, None))
            return f"line {line}"

        return Read(*_columns(text, self.separator, self.path), {}, place, tuple(notes))

    def place(self, row: int) -> str:
        """The file and the line of a row, for errors; row -1 is the header."""
        return f"{self.path}, {self._read.place(row)}".removesuffix(", ")

    @property
    def texts_of_columns(self) -> Collection[pa.Array]:
        """The cells of each column; empty texts for values such as lists."""
        return self._columns.values()

    def cells(self, name: str) -> pa.Array:
        """The cells of a column, which may be empty; raises UserError for an unknown column."""
        if name not in self._columns:
            hint = f" (the option `{name}` names another)" if name in USUAL else ""
            if self.is_text and len(self.columns) == 1:
                hint = " (the option `separator` says what separates columns)"
                if any(sign in self.columns[0] for sign in ",;\t"):
                    hint = " (each line is in quotes, as if it were one cell: take them away)"
            first = (c.slice(0, 5).to_pylist() for c in self._columns.values())
            if self.is_text and any(map(NUMBER.fullmatch, self.columns)):
                hint = " (the first line names the columns: write one above)"
            if rows := [cells.index(name) for cells in first if name in cells]:
                hint = f" (it stands in {self._read.place(rows[0])}: leave out what is above)"
            cut = 0.75 if name in USUAL else 0.5  # a default is rarely a misspelling
            raise unknown("column", name, self.columns, self.place(-1), hint, cut)
        if kind := self._read.types.get(name):
            hint = next((hint for word, hint in OF_TYPES.items() if word in kind), OTHERWISE)
            raise UserError(f"{self.path}: '{name}' holds values of type {kind[:60]}: {hint}")
        return self._columns[name]

    def texts(self, name: str) -> Sequence[str]:
        """The cells of a column; raises UserError, with the line, for an empty cell."""
        cells = self.cells(name)
        row = pc.index(cells, "").as_py()
        if row >= 0:
            what = f"{self.place(row)}: '{name}' is empty"
            raise UserError(f"{what}; leave the row out, or fill the cell")
        texts: list[str] = cells.to_pylist()
        return texts


def _trimmed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    column = pc.utf8_trim(column, BLANKS)
    if pc.any(pc.starts_with(column, '="')).as_py():  # Excel's way to keep zeros, such as ="007"
        column = pc.replace_substring_regex(column, '^="(.*)"$', r"\1")
    return column


def _unpacked(path: Path, data: bytes) -> bytes:
    """The decompressed content of a file, or of the only file in an archive."""
    try:
        while unpack := next((u for start, u in PACKED.items() if re.match(start, data)), None):
            data = unpack(data)
        if data[257:262] == b"ustar":
            raise UserError(f"{path} is an archive (tar): unpack it, and name one file")
        if data.startswith(b"PK\x03\x04"):
            archive = zipfile.ZipFile(io.BytesIO(data))
            names = [n for n in archive.namelist() if not re.search(r"(^|/)(\.|__MACOSX/)|/$", n)]
            if len(names) == 1:
                return archive.read(names[0])
            if "xl/workbook.xml" in names:
                raise UserError(f"{path} is an Excel workbook: {FORMS}")
            listed = ", ".join(names[:4]) + ", ..." * (len(names) > 4)
            what = f"{path} is an archive of {len(names)} files, not of one ({listed})"
            raise UserError(f"{what}: join those that belong together, and name one file")
    except DAMAGED as error:
        raise UserError(f"{path} cannot be unpacked: {error}") from None
    return data


def _decoded(path: Path, encoding: str) -> tuple[str, str]:
    """The text of a file, and its encoding; for cp1252 also the first line that is not UTF-8."""
    if path.name.lower().endswith(tuple(f".{ending}" for ending in UNREAD)):
        raise UserError(f"{path} is of a form that is not read: {FORMS}")
    data = _unpacked(path, path.read_bytes())
    # detects UTF-16 and UTF-32 by byte order marks or zero bytes
    for tried in [encoding] if encoding else [json.detect_encoding(data), "cp1252"]:
        try:
            text = data.decode(tried)
            break
        except UnicodeDecodeError as error:
            failed = error
        except LookupError:
            raise UserError(f"there is no encoding '{encoding}' (the option `encoding`)") from None
    else:
        hint = "" if encoding else "; the option `encoding` names another, such as shift_jis"
        raise UserError(f"{path} is not a text in {encoding or 'UTF-8 or cp1252'}: {failed}{hint}")
    if text.startswith(("PAR1", "ARRO", "FEA1")):
        hint = "unpack it, and let its name end in .parquet or .feather"
        raise UserError(f"{path} is Parquet or Feather: {hint}")
    if "\0" in text:
        hint = f"if it is one, the option `encoding` helps, else {FORMS}"
        line = 1 + text.count("\n", 0, text.index("\0"))
        raise UserError(f"{path} is not a text file: line {line} holds a zero byte; {hint}")
    if tried == "cp1252" and not encoding:
        line = 1 + data.count(10, 0, failed.start)
        if other := next((n for n, each in enumerate(data.splitlines(), 1) if _is_utf8(each)), 0):
            raise UserError(
                f"{path} mixes encodings: line {other} is UTF-8, line {line} is not; save it in one, or "
                "set the option `encoding`"
            )
        tried += f" (line {line} is not UTF-8)"
    return text.removeprefix("\ufeff"), tried


def _is_utf8(line: bytes) -> bool:
    """Whether a line is UTF-8 and not ASCII; other encodings hardly ever are."""
    return not line.isascii() and line.decode(errors="ignore").encode() == line


def _with_all_names(text: str, separator: str) -> str:
    """The text with an empty name for a column without a name.

    R writes none above the names of rows; other programs end each row with a separator.
    """
    reader = csv.reader(io.StringIO(text[:LONG], newline=""), delimiter=separator)
    rows = [*islice(filter(None, reader), SAMPLE)]
    if not _lack_one_name(rows):
        return text
    is_empty = not any(row[-1].strip() for row in rows[1:])
    has_names = len({row[0] for row in rows}) == len(rows)
    before = r"\n*[^\r\n]+" if is_empty else r"\n*" if has_names else "$^"
    return re.sub(f"^({before})", lambda match: match[1] + separator, text, count=1)


def _from_header(text: str, given: str) -> tuple[str, str, int]:
    """The text with the lines above the header blanked, the separator, and the number of these lines."""
    sample = "".join(islice(io.StringIO(text[:LONG], newline=""), SAMPLE))
    separator, above = _found(sample, [given] if given else [*SEPARATORS.values()])
    if separator == " ":
        text = _with_single_blanks(text)
    if above:
        lines = io.StringIO(text, newline="")
        [*islice(lines, above)]
        text = "\n" * above + re.sub(r"^(\s*)#? *", r"\1", lines.read())
    return text, separator, above


def _found(sample: str, separators: Sequence[str]) -> tuple[str, int]:
    """The separator that gives the most cells a line, and the number of lines above the header."""
    best, found = (False, False, 1), (separators[0], 0)
    for separator in separators:
        is_blank = separator == " "  # comes last, as sentences have blanks, too
        read = _with_single_blanks(sample) if is_blank else sample
        reader = csv.reader(io.StringIO(read, newline=""), delimiter=separator)
        numbered = [(reader.line_num, cells) for cells in reader if cells]
        if not numbered or (is_blank and best[0]):
            continue
        # the last row may be cut off
        lines, rows = zip(*(numbered[:-1] or numbered), strict=True)
        start, width = _start(rows)
        alike = {len(row) for row in rows[1:]} <= {len(rows[0])} or _lack_one_name(rows)
        score = (alike, start > 0, width)
        is_sure = alike or not is_blank or (start > 0 and width > 2 and best[2] == 1)
        if width > 1 and score > best and is_sure:
            best, found = score, (separator, lines[start - 1] if start else 0)
    return found


def _lack_one_name(rows: Sequence[Sequence[str]]) -> bool:
    is_named = len(rows) > 2 and len(rows[0]) > 1
    return is_named and {len(row) for row in rows[1:]} == {len(rows[0]) + 1}


def _with_single_blanks(text: str) -> str:
    return re.sub(r"[ \t]+", " ", re.sub(r"(?m)^(#?)[ \t]+|[ \t]+(?=\r?$)", r"\1", text))


def _start(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """The index of the header among the rows, usually 0, and its number of cells."""
    # from here on, all rows are as long as the last one
    settled = max((i for i, r in enumerate(rows, 1) if len(r) != len(rows[-1])), default=0)
    comments = next((i for i, row in enumerate(rows) if not row[0].startswith("#")), 0)
    if settled < comments:
        settled = comments if _names_columns(rows[comments:]) else comments - 1
    above = [len(row) for row in rows[:settled] if not row[0].startswith("#")]
    is_found = len(rows[-1]) not in (1, *above) and _names_columns(rows[settled:])
    return (settled, len(rows[-1])) if is_found else (0, len(rows[0]))


def _names_columns(rows: Sequence[Sequence[str]]) -> bool:
    """Whether no cell of the first row is a number or occurs again in its column."""
    columns = zip(*rows, strict=True)
    return not any(n and (NUMBER.fullmatch(n) or n in below) for n, *below in columns)


def _columns(text: str, separator: str, path: Path) -> tuple[list[str], list[pa.Array]]:
    header = next(_rows(text, separator, path), (1, []))[1]
    if not header:
        raise UserError(f"{path} holds no row")
    names = [name.strip(BLANKS) for name in header]
    if all(re.fullmatch("'.+'", name) for name in names):
        raise UserError(f"{path}: names are in single quotes; cells are quoted by double ones")
    if text.count('"') % 2:  # Arrow would read everything up to the end as one cell
        _check(text, separator, path)
    data = text.encode()
    size = len(data) + 1
    read = pa.csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=size)
    types = {f"f{i}": pa.string() for i in range(len(names))}
    convert = pa.csv.ConvertOptions(column_types=types, strings_can_be_null=False)
    parse = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        table = pa.csv.read_csv(io.BytesIO(data), read, parse, convert).slice(1)
    except pa.ArrowInvalid as error:
        _check(text, separator, path)
        raise UserError(f"{path}: {' '.join(str(error).split())[:160]}") from None
    if len(table) < text.rstrip().count("\n"):
        if len(table) + 1 < sum(not line.isspace() for line in io.StringIO(text)):
            _check(text, separator, path)  # Arrow lets an open quote swallow the rows after it
    size = len(table)
    while size and not any(column[size - 1].as_py().strip() for column in table.columns):
        size -= 1  # spreadsheets write empty rows below the last one
    return names, table.slice(0, size).columns


def _rows(text: str, separator: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = (match[0] for match in LINE.finditer(text))  # io.StringIO would copy the text
    reader = csv.reader(lines, delimiter=separator, strict=True)
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
            few = "leave the line out if it is a remark"
            many = "name each column, and leave out what stands above the header"
            raise UserError(
                f"{path}, line {line}: {counted(len(cells), 'cell')}, but the header names "
                f"{counted(width, 'column')}; {few if len(cells) < width else many}"
            )
