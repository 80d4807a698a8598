"""The two tables of results as Parquet files: their columns, and how they are written and read.

docs/guide/results_format.md describes every column for those who read the files with other tools.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_origin

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from oodbench.errors import brief
from oodbench.files import write_whole
from oodbench.results.run_spec import COMPLETE, LATER, RunSpec
from oodbench.results.schemas import (
    COSTS,
    UNREADABLE,
    Constant,
    Context,
    DamagedFile,
    Provenance,
    parse_json,
    read_bytes,
)

FIELDS = fields(RunSpec)
NAMES = pa.list_(pa.string())
REPEATED = pa.dictionary(pa.int32(), pa.string())
"""The type of text columns with few distinct values."""
PLAIN: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int32(),
    float: pa.float64(),
    bool: pa.bool_(),
}
"""Column types of fields of plain types; tuples of names become lists, and mappings JSON."""
SPEC = pa.schema(
    [
        ("id", pa.string()),
        *(
            (f.name, NAMES if get_origin(f.type) is tuple else PLAIN.get(f.type, pa.string()))
            for f in FIELDS
        ),
    ]
)
"""The columns of a planned run: its id and the fields of its spec."""
RUNS = pa.schema(
    [
        *SPEC,
        ("training_environments", NAMES),
        ("metric", pa.string()),
        ("higher_is_better", pa.bool_()),
        ("state", pa.string()),
        ("last_step", pa.int32()),
        ("records", pa.int32()),
        *((name, pa.float64()) for name in COSTS),
        ("constant", pa.string()),
        ("context", pa.string()),
        ("provenance", pa.string()),
    ]
)
"""The columns of an ended run; `records` is the number of its rows in the other table."""
ABOUT = [*(name for name in RUNS.names if name not in SPEC.names), "error"]
"""The columns of a run that are unknown before it is trained."""
RECORDS = pa.schema(
    [
        ("id", REPEATED),
        ("step", pa.int32()),
        ("environment", REPEATED),
        ("split", REPEATED),
        ("metric", REPEATED),
        ("value", pa.float64()),
        ("count", pa.int32()),
    ]
)
"""The columns of a recorded value."""
JSON = frozenset(
    [f.name for f in FIELDS if f.type not in PLAIN and get_origin(f.type) is not tuple]
    + ["constant", "context", "provenance"]
)
"""The columns that contain JSON."""
CATEGORIES = [f.name for f in RECORDS if f.type == REPEATED]
SHAPES: dict[str, TypeAdapter[Any]] = {
    "constant": TypeAdapter(Constant),
    "context": TypeAdapter(Context),
    "provenance": TypeAdapter(Provenance),
}
"""The types of the JSON columns whose keys the package reads."""
MAPPING = TypeAdapter(dict[str, Any])
OPTIONAL = frozenset(
    [f.name for f in FIELDS if f.default is None]
    + ["training_environments", "metric", "higher_is_better", *COSTS, *SHAPES]
    + ["environment", "split", "value"]
)
"""The columns that may be null."""
LEAST = {"draw": 0, "trial": 0, "steps": 1, "evaluate_every": 1, "step": 0, "count": 0}
"""The smallest valid values of columns."""
MOST_ROWS = 10_000
"""The most rows per byte of a file; a file that claims more is not read."""


def table_of(rows: pd.DataFrame | Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Convert columns of runs or records into a table; mappings become JSON, missing columns null."""
    arrays = []
    for column in schema:
        values: Any = rows[column.name] if column.name in rows else [None] * len(rows["id"])
        if column.name in JSON:
            values = _written(values)
        elif column.type == NAMES:
            values = [None if _is_missing(names) else list(names) for names in values]
        elif column.type == REPEATED and isinstance(values, pd.Series):
            values = values.astype(object)
        arrays.append(pa.array(values, column.type, from_pandas=True))
    return pa.Table.from_arrays(arrays, schema=schema)


def _written(values: Iterable[Any]) -> list[str | None]:
    """Mappings as JSON; an object that several rows share is serialized once."""
    kept = list(values)  # keeps the values alive, so that ids stay unique
    distinct = {id(value): value for value in kept}
    texts = {i: None if _is_missing(v) else json.dumps(v) for i, v in distinct.items()}
    return [texts[id(value)] for value in kept]


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def content_of(table: pa.Table) -> bytes:
    """The bytes of a Parquet file of this table."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, store_schema=False)
    return bytes(sink.getvalue())


def write_table(table: pa.Table, path: Path) -> None:
    """Write a Parquet file atomically."""
    write_whole(path, content_of(table))


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The table in a file; raises DamagedFile if it is missing, truncated or of another format."""
    content = read_bytes(path)
    if content is None:
        raise DamagedFile(f"{path}: No such file or directory")
    return parsed(content, schema, str(path))


def parsed(content: bytes, schema: pa.Schema, place: str) -> pa.Table:
    """The table in the bytes of a Parquet file; raises DamagedFile, which names the `place`.

    Columns that are not in OPTIONAL have a value in each row.
    """
    repeated = [f.name for f in schema if f.type == REPEATED]
    try:
        with pq.ParquetFile(
            pa.BufferReader(content), page_checksum_verification=True, read_dictionary=repeated
        ) as file:
            rows = file.metadata.num_rows
            if rows > MOST_ROWS * len(content):
                raise DamagedFile(f"{place} has more rows than its bytes can hold")
            table = file.read(columns=schema.names, use_threads=False)
        for name in (name for name in schema.names if name not in table.column_names):
            if name not in LATER:
                raise DamagedFile(
                    f"{place} has no column {name}: it is not a table of this version"
                )
            values = pa.array([LATER[name]] * rows, schema.field(name).type)
            table = table.append_column(name, values)
        table = table.select(schema.names).cast(schema)
        if odd := next(_odd(table), ""):
            raise DamagedFile(f"{place} is damaged: {odd}")
        return table
    except DamagedFile:
        raise
    except UNREADABLE as error:
        raise DamagedFile(f"{place} is torn or no table of results: {brief(error)}") from None


def _odd(table: pa.Table) -> Iterator[str]:
    """Describe wrong values in columns of the right types."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if (name not in OPTIONAL and column.null_count) or (
            column.type == NAMES and pc.list_flatten(column).null_count
        ):
            yield f"a row has no {name}"
        if name == "test_environments" and 0 in pc.list_value_length(column).unique().to_pylist():
            yield f"a row has no {name}"
        if name in LEAST and any(pc.less(column, LEAST[name]).unique().to_pylist()):
            yield f"a row has a {name} below {LEAST[name]}"
        if name == "state" and (others := {*column.unique().to_pylist()} - {*COMPLETE}):
            yield f"a run has the state {min(others)[:20]!r}"


def count_records(runs: pd.DataFrame, records: pa.Table, place: str) -> None:
    """Raise DamagedFile unless each run has as many records as its column `records` says."""
    counts = pc.value_counts(records["id"].cast(pa.string()))
    there = dict(zip(*(counts.field(i).to_pylist() for i in (0, 1)), strict=True))
    wanted = dict(zip(runs["id"], runs["records"], strict=True))
    if unlike := there.items() ^ wanted.items():
        first, _ = min(unlike)
        has = f"{there.get(first, 0)} records of the run {first[:20]}, not {wanted.get(first, 0)}"
        raise DamagedFile(f"{place} is damaged: it has {has}")


def runs_frame(table: pa.Table, place: str = "") -> pd.DataFrame:
    """A table of runs as a data frame, with JSON parsed and lists of names as tuples.

    Raises DamagedFile, which names the `place`, for text that is not JSON, or JSON of other types.
    """
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if name in JSON:
            schema = SHAPES.get(name, MAPPING)
            parse = partial(parse_json, schema=schema, place=f"{place}: the column {name}")
            columns[name] = _each(column, parse)
        elif column.type == NAMES:
            joined = pc.binary_join(column, "\x1f").fill_null("")
            columns[name] = _each(joined, lambda text: tuple(text.split("\x1f") if text else ()))
        elif column.type == pa.string():
            columns[name] = _each(column, str)
        else:
            columns[name] = column.to_pandas()
    return pd.DataFrame(columns)


def _each(column: pa.Array, change: Callable[[Any], Any]) -> "np.ndarray[Any, Any]":
    """Apply a function to every row of a column, but only once to each distinct text."""
    encoded = column.dictionary_encode()
    values = np.empty(len(encoded.dictionary) + 1, dtype=object)
    for i, text in enumerate(encoded.dictionary.to_pylist()):
        values[i] = change(text)
    places = encoded.indices.fill_null(len(encoded.dictionary))
    return np.asarray(values[places.to_numpy()])


def records_frame(tables: Sequence[pa.Table]) -> pd.DataFrame:
    """Tables of records as one data frame with categorical texts."""
    table = pa.concat_tables([RECORDS.empty_table(), *tables])
    frame: pd.DataFrame = table.unify_dictionaries().to_pandas()
    return frame


def of_runs(records: pa.Table, ids: Iterable[str]) -> pa.Table:
    """The records of the runs with these ids."""
    return records.filter(pc.is_in(records["id"], pa.array(ids, pa.string())))


def specs_of(runs: pd.DataFrame) -> list[RunSpec]:
    """The spec of each row of runs, with the stored id."""
    names = [f.name for f in FIELDS if f.name in runs]
    columns = [runs[name].tolist() for name in names]
    specs = []
    for run_id, *values in zip(runs["id"], *columns, strict=True):
        spec = RunSpec(**dict(zip(names, values, strict=True)))
        vars(spec)["id"] = run_id  # hashing again takes 40 microseconds
        specs.append(spec)
    return specs


def spec_columns(specs: Sequence[RunSpec], ids: Sequence[str]) -> dict[str, Any]:
    """The columns SPEC for these specs."""
    names = [f.name for f in FIELDS]
    return {"id": list(ids), **{name: [getattr(s, name) for s in specs] for name in names}}
