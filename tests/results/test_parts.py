"""A stranger's files of parts are refused before they take much memory, and changed ones, too."""

import zlib
from base64 import b85decode, b85encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oodbench.results.boards import board_names, find_board, part_files
from oodbench.results.parts import LARGEST, PACKED, read_file
from oodbench.results.schemas import DamagedFile

MANY = 20_000_000
LONG = "x" * 100_000
PLAIN = {"use_dictionary": False}


def bomb(path: Path, columns: dict[str, pa.Array], **options: Any) -> Path:
    """Write a file that is small, and large once it is unpacked."""
    pq.write_table(pa.table(columns), path, compression="zstd", **options)
    assert path.stat().st_size < LARGEST // 50
    return path


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"step": pa.nulls(MANY, pa.int32())}, PLAIN | {"row_group_size": MANY // 3}),
        ({"vectorized": pa.repeat(True, MANY)}, PLAIN),
        ({"seconds": pa.repeat(pa.scalar(0.5, pa.float32()), 4 * MANY)}, PLAIN),
        ({"hparams": pa.repeat(LONG, 5000)}, PLAIN),
        ({"hparams": pa.repeat(LONG, 5000)}, {}),
        ({"hparams": pa.repeat(LONG, 5000)}, PLAIN | {"column_encoding": "DELTA_BYTE_ARRAY"}),
        ({"step": pa.repeat(7, MANY)}, PLAIN | {"column_encoding": "DELTA_BINARY_PACKED"}),
        ({"test_environments": pa.array([[None] * MANY], pa.list_(pa.string()))}, PLAIN),
        ({f"value/{i}": pa.nulls(MANY // 20) for i in range(20)}, PLAIN),
    ],
)  # fmt: skip
def test_a_file_that_unpacks_to_much_more_is_not_unpacked(
    tmp_path: Path, columns: dict[str, pa.Array], options: dict[str, Any]
) -> None:
    path = bomb(tmp_path / "x.parquet", columns, **options)
    with pytest.raises(DamagedFile, match=r"unpacks to more|not written in full") as refused:
        read_file(path)
    assert "\n" not in str(refused.value)


def with_first(table: pa.Table, name: str, value: object) -> pa.Table:
    column = pa.array([value, *table[name].to_pylist()[1:]], table[name].type)
    return table.set_column(table.column_names.index(name), name, column)


def with_metadata(
    table: pa.Table, change: Callable[[bytes], bytes] = bytes, end: int | None = None
) -> pa.Table:
    text = change(zlib.decompress(b85decode(table.schema.metadata[PACKED.encode()])))
    return table.replace_schema_metadata({PACKED: b85encode(zlib.compress(text)[:end])})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.slice(1), "not as many rows"),
        (lambda t: with_first(t, "draw", None), "draw of some run is missing"),
        (lambda t: with_first(t, "training_environments", [None]), "training_env.* is missing"),
        (lambda t: with_first(t, "id", "0" * 16), "has the spec of"),
        (lambda t: t.append_column("mine", t["step"]), "is damaged: 'mine/'"),
        (lambda t: t.replace_schema_metadata({PACKED: "c$@"}), "metadata .* are damaged"),
        (lambda t: with_metadata(t, lambda m: b'{"schema": 2}'), "has schema 2, not 1: another"),
        (lambda t: with_metadata(t, end=-4), "metadata .* are damaged"),
        (lambda t: with_metadata(t, lambda m: m + b" " * LARGEST), "metadata .* are damaged"),
        (
            lambda t: with_metadata(t, lambda m: m.replace(b'"rows":', b'"rows":-', 1)),
            "rows: Input",
        ),
    ],
)
def test_a_part_that_was_changed_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    file = min(part_files(find_board(board_names()[0])), key=lambda f: f.stat().st_size)
    changed, path = change(pq.read_table(file, partitioning=None)), tmp_path / "x.parquet"
    pq.write_table(changed, path, use_dictionary=False)
    with pytest.raises(DamagedFile, match=reason):
        read_file(path)[0].specs()
