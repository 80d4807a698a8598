"""A board on disk: the frozen results of a protocol, part by part.

BOARD/protocol.yaml          the sweep, with every row that may be a part
BOARD/parts/DATASET.parquet  the parts of a dataset: a part is all runs of one row of a table on it

The parts of a dataset stand one after the other in its Parquet file. A part has a row of the file for each
step of a run that a selection rule chooses, by run, then step. A rule never chooses among a run's steps
again: of the rows of a run, the one with a score of the rule is its candidate. The columns:

id, draw, trial                          the run; `id` is that of its spec
test_environments, validation_environments, training_environments   lists of names
hparams, network_hparams                 the run's values as JSON
adapt                                    those of the adaptation, in rows that adapt alone
vectorized, diverged, last_step, seconds how it was trained; the seconds of training and evaluation
step                                     the step of this row
score/RULE                               the validation score of the rule; null where another rule chose
value/METRIC/ENVIRONMENT                 the value on the `in` split of a test environment, null for
                                         another one, of the metric that ranks the dataset and of the
                                         worst group; without an environment, of the predictor itself;
                                         `/` and `%` in a metric's name are %2f and %25
count/ENVIRONMENT                        the number of examples behind these values
count_of/METRIC/ENVIRONMENT              that of a metric where it is another, such as a group's accuracy

A column that only other parts of the file have is null in a part, and left out when it is read. What all
runs of a part share is JSON in the metadata of the file, compressed and in base 85: see `Packed`.
"""

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from oodbench.errors import UserError
from oodbench.files import whole_file
from oodbench.results.boards import part_files
from oodbench.results.run_spec import BEFORE, RunSpec
from oodbench.results.schemas import Context, DamagedFile, parse_json

SCHEMA = 1
Schema = Annotated[int, Field(alias="schema", ge=SCHEMA, le=SCHEMA)]
OF_A_RUN = (
    *("draw", "trial", "test_environments", "validation_environments"),
    *("hparams", "network_hparams"),
)
"""The fields of a spec in which the runs of a part differ; they share the others."""
NAMES = pa.list_(pa.string())
RUN = pa.schema(
    [
        ("id", pa.string()),
        ("draw", pa.int32()),
        ("trial", pa.int32()),
        ("test_environments", NAMES),
        ("validation_environments", NAMES),
        ("training_environments", NAMES),
        ("hparams", pa.string()),
        ("network_hparams", pa.string()),
        ("vectorized", pa.bool_()),
        ("diverged", pa.bool_()),
        ("last_step", pa.int32()),
        ("seconds", pa.float32()),
        ("step", pa.int32()),
    ]
)
"""The columns that every part has."""
ADAPT = "adapt"
WORST_GROUP = "worst_group_accuracy"
PACKED = "oodbench.parts"
"""The key of a file's metadata that holds a `Packed`."""
SCORE, VALUE, COUNT, OWN_COUNT = "score/", "value/", "count/", "count_of/"
NUMBERS = {SCORE: pa.float64(), VALUE: pa.float64(), COUNT: pa.int32(), OWN_COUNT: pa.int32()}
OTHERS = {ADAPT: pa.string(), **NUMBERS}
"""The types of the other columns, by the beginnings of their names."""
LARGEST = 2**26
"""The most bytes of a file, and of its metadata, when they are read."""
ENCODINGS = {"PLAIN", "RLE"}
"""How columns are written; dictionaries and differences could repeat a long text in a few bytes."""
WIDTH = 8
"""The most bytes of a value without a text."""


def value_column(metric: str, environment: str) -> str:
    """Return the column of a metric's values on an environment."""
    return f"{VALUE}{escaped(metric)}/{environment}"


def escaped(metric: str) -> str:
    """Return a metric's name as it stands in a column's."""
    return metric.replace("%", "%25").replace("/", "%2f")


def kept_metrics(ranking: Iterable[str]) -> list[str]:
    """Return the metrics of environments that parts keep and pages show for datasets ranked by `ranking`.

    They include the values before adaptation and the worst group's accuracy.
    """
    names = list(ranking)
    return [*names, *(name + BEFORE for name in names), WORST_GROUP]


class PartProvenance(TypedDict, total=False):
    """The code, libraries, machine and data that the runs of a part were trained with."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    oodbench: str
    commit: str | None
    torch: str
    machine: str
    device: str
    threads: int
    arithmetic: str
    dates: list[str]
    """The first and the last day on which a run was started."""
    source: str
    """A digest of the method's source."""
    data: dict[str, str]
    """A digest of each environment's examples over the trials of the part."""


class Constant(TypedDict):
    """The constant answer's values in one trial of one test set."""

    test_environments: list[str]
    trial: int
    values: dict[str, dict[str, dict[str, float | None]]]
    """By metric, environment and split."""


SPEC = TypeAdapter(RunSpec)


def _checked_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError for values that no spec can have, whatever its runs are."""
    of_a_run = {"draw": 0, "trial": 0, "hparams": {}, "network_hparams": {}}
    SPEC.validate_python({"test_environments": []} | of_a_run | spec)
    missing = {"dataset_label", "ceiling"} - spec.keys()
    if missing:
        raise ValueError(f"it has no {' and '.join(sorted(missing))}")
    return spec


class About(BaseModel):
    """The values that all runs of a part share."""

    model_config = ConfigDict(strict=True, frozen=True)

    schema_: Schema = SCHEMA
    spec: Annotated[dict[str, Any], AfterValidator(_checked_spec)]
    """The fields of the specs but for `OF_A_RUN`."""
    context: Context
    constants: list[Constant]
    selection: str | None
    """The selection rule that the protocol names."""
    provenance: PartProvenance


@dataclass(frozen=True)
class Part:
    """One row of one dataset of a board."""

    about: About
    table: pa.Table
    """The columns of `RUN`, then the scores, values and counts."""

    @property
    def dataset(self) -> str:
        """The dataset as tables call it."""
        return str(self.about.spec["dataset_label"])

    @property
    def label(self) -> str:
        """The label of the row."""
        return str(self.about.spec["label"])

    def __str__(self) -> str:
        return f"{self.label} on {self.dataset}"

    @property
    def rules(self) -> tuple[str, ...]:
        """The selection rules that have scores."""
        names = self.table.column_names
        return tuple(n.removeprefix(SCORE) for n in names if n.startswith(SCORE))

    @property
    def ids(self) -> list[str]:
        """The runs' ids."""
        return list(dict.fromkeys(self.table["id"].to_pylist()))

    @property
    def test_sets(self) -> list[tuple[str, ...]]:
        """The sets of test environments that have runs."""
        return list(dict.fromkeys(map(tuple, self.table["test_environments"].to_pylist())))

    def specs(self) -> dict[str, RunSpec]:
        """Return the runs' specs by id; raises DamagedFile if a spec has another id."""
        specs = {}
        for row in self.runs().to_dict(orient="records"):
            values = self.about.spec | {n: row[n] for n in (*OF_A_RUN, ADAPT) if n in row}
            spec, run = RunSpec.from_json(values), f"run {row['id']} of {self}"
            try:
                found = spec.id
            except (TypeError, ValueError, AttributeError, RecursionError) as error:
                raise DamagedFile(f"{run} has no spec that can be: {error}") from error
            if found != row["id"]:
                raise DamagedFile(f"{run} has the spec of {found}")
            specs[found] = spec
        return specs

    def runs(self) -> pd.DataFrame:
        """Return a run in each row: the columns of `RUN` but `step`, and `adapt`; mappings unpacked."""
        return pd.DataFrame(self.run_columns())

    def run_columns(self) -> dict[str, list[Any]]:
        """Return the columns of `runs` as lists."""
        ids = self.table["id"].to_numpy()
        first = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]][: len(ids)])
        adapts = [ADAPT] * (ADAPT in self.table.column_names)
        table = self.table.select([*RUN.names[:-1], *adapts]).take(pa.array(first))
        columns: dict[str, list[Any]] = {n: table[n].to_pylist() for n in table.column_names}
        for name in ("hparams", "network_hparams", *adapts):
            values = {text: self._mapping(text, name) for text in dict.fromkeys(columns[name])}
            columns[name] = [values[text] for text in columns[name]]
        for name in ("test_environments", "validation_environments", "training_environments"):
            columns[name] = [tuple(names) for names in columns[name]]
        return columns

    def with_data(self, digests: dict[str, str]) -> "Part":
        """Return the same part with the digests of its data."""
        provenance: PartProvenance = {**self.about.provenance, "data": digests}
        return replace(self, about=self.about.model_copy(update={"provenance": provenance}))

    def _mapping(self, text: str, what: str) -> dict[str, Any]:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise DamagedFile(f"a run of {self} has {what} that are not names with values")
        return values

    def equal_numbers(self, other: "Part") -> bool:
        """Return whether the other part has the same runs, scores and values, bit for bit."""
        return self.about.spec == other.about.spec and self._numbers().equals(other._numbers())

    def _numbers(self) -> pd.DataFrame:
        """Return what a training gives again, in an order that it cannot change."""
        frame: pd.DataFrame = self.table.drop_columns(["seconds", "vectorized"]).to_pandas()
        frame = frame.sort_values(["id", "step"], ignore_index=True)
        return frame.sort_index(axis=1)


class OnePart(BaseModel):
    """A part in a file of several."""

    model_config = ConfigDict(strict=True, frozen=True)

    rows: Annotated[int, Field(ge=0)]
    """The number of its rows in the file's table."""
    about: About


class Packed(BaseModel):
    """The metadata of a file: its parts, in the order of their rows."""

    model_config = ConfigDict(strict=True, frozen=True)

    schema_: Schema = SCHEMA
    parts: list[OnePart]


def write_parts(parts: Sequence[Part], path: Path) -> None:
    """Write the parts of a dataset, whole or not at all.

    One file has them all, since Parquet's own metadata would be a third of a file of one part, and since
    the hyperparameters that rows share in a draw compress well beside each other. It has no dictionaries,
    no statistics and no copy of the schema.
    """
    listed = [OnePart(rows=part.table.num_rows, about=part.about) for part in parts]
    about = zlib.compress(Packed(parts=listed).model_dump_json(by_alias=True).encode(), 9)
    tables = [part.table.replace_schema_metadata(None) for part in parts]
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(path) as file,
        pq.ParquetWriter(
            file,
            table.schema,
            compression="zstd",
            compression_level=19,
            use_dictionary=False,
            write_statistics=False,
            store_schema=False,
        ) as writer,
    ):
        writer.write_table(table)
        writer.add_key_value_metadata({PACKED: b85encode(about)})


def read_file(path: Path) -> list[Part]:
    """Return the parts in a file; raises DamagedFile for one that is torn, foreign or of another schema."""
    try:
        with pq.ParquetFile(path) as file:
            _check_size(file.metadata, path)
            table = file.read(use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DamagedFile(f"{path} is torn or no Parquet file") from error
    listed = _listed(table, path)
    if sum(one.rows for one in listed) != table.num_rows:
        raise DamagedFile(f"{path} is damaged: it has not as many rows as its metadata say")
    try:
        arrays = {name: table[name].cast(kind) for name, kind in _columns(table).items()}
    except (KeyError, pa.ArrowException) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    if empty := [name for name in RUN.names if _has_nulls(arrays[name])]:
        raise DamagedFile(f"{path} is damaged: {', '.join(empty)} of some run is missing")
    parts, first = [], 0
    for one in listed:
        own = {name: column.slice(first, one.rows) for name, column in arrays.items()}
        kept = {n: c for n, c in own.items() if n in RUN.names or c.null_count < len(c)}
        parts.append(Part(one.about, pa.table(kept)))
        first += one.rows
    return parts


def _check_size(metadata: pq.FileMetaData, path: Path) -> None:
    """Raise DamagedFile, before anything is unpacked, for a file of many rows, nulls or repeated texts."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    if any(set(column.encodings) - ENCODINGS for column in columns):
        raise DamagedFile(f"{path} is no part of a board: its values are not written in full")
    if sum(c.total_uncompressed_size + WIDTH * c.num_values for c in columns) > LARGEST:
        raise DamagedFile(f"{path} unpacks to more than {LARGEST >> 20} MB")


def _columns(table: pa.Table) -> dict[str, pa.DataType]:
    """Return the columns that a table should have, with their types; raises KeyError for an unknown one."""
    types = {field.name: field.type for field in RUN}
    for name in table.column_names:
        if name not in types:
            types[name] = OTHERS[name if name == ADAPT else name.partition("/")[0] + "/"]
    return types


def _has_nulls(column: pa.ChunkedArray) -> bool:
    lists = pa.types.is_list(column.type)
    return bool(column.null_count or (lists and pa.compute.list_flatten(column).null_count))


def _listed(table: pa.Table, path: Path) -> list[OnePart]:
    """Return the parts that the metadata of a file list; raises DamagedFile."""
    metadata = table.schema.metadata or {}
    what = f"the metadata of {path}"
    packed = metadata.get(PACKED.encode())
    if packed is None:
        raise DamagedFile(f"{path} is no part of a board: it has no metadata of oodbench")
    try:
        unpack = zlib.decompressobj()
        text = unpack.decompress(b85decode(packed), LARGEST)
    except (ValueError, zlib.error) as error:
        raise DamagedFile(f"{what} are damaged") from error
    if not unpack.eof:
        raise DamagedFile(f"{what} are damaged")
    return parse_json(text, Packed, what).parts


def known_parts(board: Path) -> list[Part]:
    """Return the parts of a board, which may have none yet; raises DamagedFile."""
    return [part for path in part_files(board) for part in read_file(path)]


def read_parts(board: Path) -> list[Part]:
    """Return the parts of a board; raises DamagedFile, and UserError if it has none."""
    parts = known_parts(board)
    if not parts:
        raise UserError(f"the board {board.name} has no part yet")
    return parts
