"""Tables with typed values: JSON, Parquet and Arrow files, shards, and folders of `save_to_disk`."""

import glob
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet

from oodbench.errors import UserError, some
from oodbench.files import nearest

if TYPE_CHECKING:
    import pandas as pd

ARROW, LINES = (".parquet", ".pq", ".feather", ".arrow"), (".jsonl", ".ndjson")
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\b.*")
"""The name of a shard: the split, the shard's number, and the number of shards."""
PARTITION = re.compile(r"([^=]+)=(.*)")
"""The name of a folder whose rows share the value of a column, such as `year=2020`."""
TREE = ("environment", "target", "path")
"""The columns of JSON of the form {environment: {class: [files]}}."""


Records = tuple[list[tuple[str, Any]], str]
"""The records, each with its name in errors, and a note on their form, which may be empty."""


class Read(NamedTuple):
    """The contents of a table, before cells are trimmed."""

    names: Sequence[str]
    columns: Sequence[pa.ChunkedArray]
    """The texts of each column; empty texts for a column whose values are not cells."""
    types: Mapping[str, str]
    """The type of each column whose values are not cells, such as lists."""
    place: Callable[[int], str]
    """The name of a row in errors; row -1 is the header."""
    notes: tuple[str, ...]


def table_files(path: Path) -> list[Path]:
    """The files of a table: a single file, those of `save_to_disk`, or shards as on Hugging Face's hub.

    The path `data` stands for all shards in that folder, `data/train` for the shards of a split. Raises
    UserError if there are no files.
    """
    if path.is_file():
        if (shard := SHARD.fullmatch(path.name)) and int(shard[3]) > 1:
            split = path.parent / shard[1]
            hint = f"give {path.parent} for all files in it, or {split} for this split"
            raise UserError(f"{path} is one of {int(shard[3])} shards; {hint}")
        return [path]
    if (path / "dataset_dict.json").is_file():
        found = ", ".join(sorted(each.name for each in path.iterdir() if each.is_dir()))
        raise UserError(f"{path} holds several splits; name the folder of one of them: {found}")
    if (state := path / "state.json").is_file():
        try:
            return [path / f["filename"] for f in json.loads(state.read_text())["_data_files"]]
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{path} is not a folder that `Dataset.save_to_disk` wrote") from None
    files = _shown(path, [*path.glob("*.parquet"), *path.glob("data/*.parquet")])
    files = files or _shown(
        path, (f for f in path.rglob("*.parquet") if PARTITION.fullmatch(f.parent.name))
    )
    files = files or sorted(path.parent.glob(f"{glob.escape(path.name)}-*-of-*.parquet"))
    if not files:
        raise _no_table(path)
    check_shards(files)
    return files


def _shown(folder: Path, files: Iterable[Path]) -> list[Path]:
    """The sorted files that programs read: names that begin with . or _ are of copies and parts of jobs."""
    found = sorted(files)

    def is_read(file: Path) -> bool:
        parts = file.relative_to(folder).parts
        return not any(p[0] in "._" and not PARTITION.fullmatch(p) for p in parts)

    return [file for file in found if is_read(file)] or found


def _no_table(path: Path) -> UserError:
    if not path.is_dir():
        return UserError(f"there is no file {path}{nearest(path)}")
    inside = sorted({str(file.parent) for file in path.rglob("*.parquet")})
    what = some(inside or [str(each) for each in sorted(path.iterdir())], 3) or "nothing"
    hint = "name one of them" if inside else "name one file, or a folder of Parquet files"
    return UserError(
        f"there is no Parquet file directly in the folder {path}, which holds {what}: {hint}"
    )


def check_shards(files: Sequence[Path]) -> None:
    """Raise UserError if a split lacks a shard, or has shards of two different counts."""
    named = [(file, m) for file in files if (m := SHARD.fullmatch(file.name))]
    found = {(file.parent / m[1], int(m[3]), int(m[2])) for file, m in named}
    for start, count, _ in sorted(found):
        if odd := [c for s, c, _ in found if s == start and c != count]:
            raise UserError(
                f"{start} is there in {count} and in {odd[0]} shards: remove the older ones"
            )
        if missing := [i for i in range(count) if (start, count, i) not in found]:
            raise UserError(f"{start}-{missing[0]:05}-of-{count:05}.parquet is missing")


def arrow_table(path: Path) -> pa.Table:
    """The table in Parquet or Arrow files, with a column for each folder such as `year=2020`.

    Numbers of a Hugging Face `ClassLabel` are replaced by the names of the classes. Raises UserError if a
    file cannot be read.
    """
    files = table_files(path)
    try:
        tables = [_partitioned(_read(file), file.parts[len(path.parts) : -1]) for file in files]
        whole = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())[:160]}") from None
    for file, table in zip(files, tables, strict=True):
        if odd := {*whole.column_names} - {*table.column_names}:
            raise UserError(f"{file} has no column '{min(odd)}', but other files of {path} have it")
    return whole


def _read(file: Path) -> pa.Table:
    with file.open("rb") as stream:
        start = stream.read(4)
    if start == b"\xff\xff\xff\xff":
        table = pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    elif start in (b"ARRO", b"FEA1"):
        table = pa.feather.read_table(file)
    else:
        table = pa.parquet.read_table(file, partitioning=None)
    table = _without_codes(table)
    info = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    for name, feature in info.get("info", {}).get("features", {}).items():
        is_label = isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        if is_label and name in table.column_names and pa.types.is_integer(table[name].type):
            numbers = table[name].combine_chunks()
            numbers = pc.if_else(pc.less(numbers, 0), None, numbers)  # -1 is an unknown label
            if len(numbers) and (pc.max(numbers).as_py() or 0) >= len(feature["names"]):
                known = f"its {len(feature['names'])} classes are numbered from 0"
                raise ValueError(f"'{name}' has the label {pc.max(numbers).as_py()}, and {known}")
            column = pc.take(pa.array(feature["names"], pa.string()), numbers)
            table = table.set_column(table.column_names.index(name), name, column)
    return table


def _flattened(table: pa.Table) -> pa.Table:
    """The table with a column for each field of a struct, except for Hugging Face's pictures."""
    parts = [table.select([i]) for i in range(table.num_columns)]
    nested = [
        pa.types.is_struct(field.type) and not {f.name for f in field.type} <= {"bytes", "path"}
        for field in table.schema
    ]
    if not any(nested):
        return table
    parts = [p.flatten() if nested[i] else p for i, p in enumerate(parts)]
    columns = [column for part in parts for column in part.columns]
    names = [name for part in parts for name in part.column_names]
    return _flattened(pa.table(columns, names=names))


def _without_codes(table: pa.Table) -> pa.Table:
    """The table with dictionary-encoded columns decoded, as shards may differ in their encoding."""
    for i, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(i, table.field(i).name, column.cast(column.type.value_type))
    return table


def _partitioned(table: pa.Table, folders: Sequence[str]) -> pa.Table:
    for name, value in (m.groups() for m in map(PARTITION.fullmatch, folders) if m):
        text = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
        if name not in table.column_names:
            table = table.append_column(name, pa.array([text] * len(table), pa.string()))
            continue
        with suppress(pa.ArrowException):  # texts that are no value of the column's type
            odd = pc.not_equal(table[name], pa.scalar(text).cast(table[name].type))
            if (row := pc.index(odd, True).as_py()) >= 0:
                other = table[name][row].as_py()
                raise ValueError(f"a file in {name}={text} has {other} in its own column '{name}'")
    return table


def read_table(table: pa.Table) -> Read:
    """The texts of an Arrow table, empty for NaN and null; a field of a struct is a column COLUMN.FIELD."""
    table = _without_codes(_flattened(table))
    columns, empty = [*map(_texts, table.columns)], pa.chunked_array([[""] * len(table)])
    others = [field for field, text in zip(table.schema, columns, strict=True) if text is None]
    return Read(
        table.column_names,
        [empty if text is None else text for text in columns],
        {field.name: str(field.type) for field in others},
        lambda row: f"row {row + 1}" if row >= 0 else "",
        (),
    )


def table_of_frame(frame: "pd.DataFrame", called: str) -> pa.Table:
    """A pandas data frame as an Arrow table, without the index; raises UserError for mixed types.

    Intervals and periods become texts, as Arrow has no such types.
    """
    import pandas as pd

    own = pd.IntervalDtype, pd.PeriodDtype
    kinds = {name: getattr(kind, "categories", kind) for name, kind in frame.dtypes.items()}
    spans = [name for name, kind in kinds.items() if isinstance(getattr(kind, "dtype", kind), own)]
    try:
        frame = frame.astype(dict.fromkeys(spans, "string"))
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = "; ".join(map(str, error.args))
        hint = "; `.astype(str)` makes texts of mixed values" * ("type object" in reason)
        raise UserError(f"{called} has no plain columns: {reason}{hint}") from error


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column.cast(pa.float64()))
    elif pa.types.is_boolean(column.type):
        column = pc.if_else(column, "True", "False")
    try:
        return column.cast(pa.string()).fill_null("")
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None


def read_json(text: str, path: Path) -> Read:
    """The texts of JSON in one of the forms of `_records`, or with one record a line.

    Raises UserError, with the line or record, for invalid JSON and for records with different keys.
    """
    found, note = [*_values(text, path)], ""
    named = [(f"line {line}", value) for line, value in found]
    if len(found) == 1 and not (path.suffix.lower() in LINES and isinstance(found[0][1], dict)):
        named, note = _records(found[0][1], path)
    keys, rows, types = list[str](), list[list[str]](), dict[str, str]()
    for place, record in named:
        if not isinstance(record, dict):
            raise UserError(f"{path}, {place} is not a JSON object")
        record = _flat(record)
        keys = keys if rows else [*record]
        if odd := {*keys} ^ {*record}:
            what = f"{path}, {place}: not all records have the key '{min(odd)}'"
            raise UserError(f"{what}; write null where there is no value")
        types |= {key: type(v).__name__ for key, v in record.items() if isinstance(v, list | dict)}
        rows.append(["" if record[key] is None else str(record[key]) for key in keys])
    columns = [pa.chunked_array([column], pa.string()) for column in zip(*rows, strict=True)]
    return Read(keys, columns, types, lambda row: named[max(row, 0)][0], (note,) * bool(note))


def _is_by_column(inner: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the outer keys are columns and the inner keys rows, as pandas writes a frame by default."""
    (first, *others) = map(set, inner.values())
    if any(first != other for other in others):
        return False
    if {"target", "environment"} <= {*inner} or all(map(str.isdigit, first)):
        return True
    cells = [[inner[name][row] for row in sorted(first)] for name in inner]
    alike = [all(map(_is_one_type, each)) for each in (cells, zip(*cells, strict=True))]
    return alike == [True, False]


def _is_one_type(cells: Iterable[Any]) -> bool:
    kinds = {float if type(cell) is int else type(cell) for cell in cells if cell is not None}
    return len(kinds) < 2


def _flat(record: dict[str, Any], above: str = "") -> dict[str, Any]:
    """The record with nested objects flattened to keys OUTER.INNER."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        is_object = isinstance(value, dict) and value
        flat |= _flat(value, f"{above}{key}.") if is_object else {above + key: value}
    return flat


def _values(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON values that follow each other in a text, each with the line in which it starts."""
    decoder, line, start, end = json.JSONDecoder(object_pairs_hook=_object), 1, 0, 0
    while filled := re.compile(r"\S").search(text, end):
        line += text.count("\n", start, filled.start())
        start = filled.start()
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            if path.suffix.lower() not in LINES:
                line = getattr(error, "lineno", line)
            raise UserError(f"{path}, line {line} is not JSON: {error}") from error
        yield line, value


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    if len(found := dict(pairs)) < len(pairs):
        (twice, _) = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key '{twice}' is there twice")
    return found


def _records(value: Any, path: Path) -> Records:
    match value:
        case [[_, *_] as names, *rows] if _are_rows(rows, len(names)):
            return _rows(path, names, rows, "the first list names the columns")
        case [*records]:
            return _numbered(records)
        case {"columns": [*names], "data": [*rows]} if _are_rows(rows, len(names)):
            # to_json(orient="split") of pandas
            return _rows(path, names, rows)
    inner = value if isinstance(value, dict) else {}
    lists = {key: each for key, each in inner.items() if isinstance(each, list)}
    are_lists = len(lists) == len(inner) > 1
    if are_lists and len({*map(len, lists.values())}) == 1:
        rows = [*zip(*lists.values(), strict=True)]
        if not any(isinstance(cell, dict) for row in rows for cell in row):
            return _rows(path, inner, rows)
    if len(lists) == 1:  # other entries describe the file
        ((key, records),) = lists.items()
        return _numbered(records, f"the records are those in '{key}'")
    kinds = [{*map(type, v.values())} if isinstance(v, dict) else set() for v in inner.values()]
    if inner and all(each == {list} for each in kinds):
        rows = [(e, c, f) for e, of in inner.items() for c, files in of.items() for f in files]
        return _rows(path, TREE, rows, f"the names of its levels are the columns {', '.join(TREE)}")
    if inner and all(each - {list, dict} for each in kinds):
        return _by_name(inner)
    if are_lists:
        raise UserError(
            f"{path} holds the lists {', '.join(inner)}: join them to one list of records, and add a key "
            "that names the list of each record"
        )
    raise UserError(
        f"{path} is JSON, but not in a form that is read: a list of records, a record a line, records by "
        "name, {environment: {class: [files]}}"
    )


def _are_rows(rows: Iterable[Any], width: int) -> bool:
    return all(isinstance(row, list) and len(row) == width for row in rows)


def _rows(
    path: Path, names: Iterable[Any], rows: Iterable[Iterable[Any]], note: str = ""
) -> Records:
    columns = [*map(str, names)]
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise UserError(f"{path}: two columns have the same name, '{twice[0]}'; rename one")
    return _numbered([dict(zip(columns, row, strict=True)) for row in rows], note)


def _numbered(records: Iterable[Any], note: str = "") -> Records:
    return [(f"record {i}", each) for i, each in enumerate(records, 1)], note


def _by_name(value: Mapping[str, Any]) -> Records:
    """Records from {row: {column: cell}}, or from {column: {row: cell}}."""
    if _is_by_column(value):
        rows = next(iter(value.values()))
        value = {row: {c: of[row] for c, of in value.items()} for row in rows}
    has_endings = all(PurePath(name).suffix[1:].isalpha() for name in value)
    column = "path" if has_endings else "Unnamed: 0"
    return [(f"record '{n}'", {column: n, **record}) for n, record in value.items()], ""
