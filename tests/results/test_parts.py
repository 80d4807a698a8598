"""A stranger's files of parts are refused before they take much memory."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodbench.results.parts import LARGEST, RUN, read_file
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
        ({"step": pa.nulls(MANY, pa.int32())}, PLAIN),
        ({"vectorized": pa.repeat(True, MANY)}, PLAIN),
        ({"seconds": pa.repeat(pa.scalar(0.5, pa.float32()), 4 * MANY)}, PLAIN),
        ({"hparams": pa.repeat(LONG, 5000)}, PLAIN),
        ({"hparams": pa.repeat(LONG, 5000)}, {}),
        ({"hparams": pa.repeat(LONG, 5000)}, PLAIN | {"column_encoding": "DELTA_BYTE_ARRAY"}),
        ({"step": pa.repeat(7, MANY)}, PLAIN | {"column_encoding": "DELTA_BINARY_PACKED"}),
        (
            {"test_environments": pa.array([[None] * MANY], pa.list_(pa.string()))},
            PLAIN,
        ),
        ({f"value/{i}": pa.nulls(MANY // 20) for i in range(20)}, PLAIN),
    ],
)  # fmt: skip
def test_a_file_that_unpacks_to_much_more_is_not_unpacked(
    tmp_path: Path, columns: dict[str, pa.Array], options: dict[str, Any]
) -> None:
    path = bomb(tmp_path / "x.parquet", columns, **options)
    with pytest.raises(DamagedFile, match=r"x\.parquet (unpacks to more|is no part)") as refused:
        read_file(path)
    assert "\n" not in str(refused.value)


@given(
    rows=st.integers(0, 10**6),
    kind=st.sampled_from(list(RUN.types)),
    dictionary=st.booleans(),
    groups=st.integers(1, 10**6),
)
def test_rows_of_nulls_are_counted(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    kind: pa.DataType,
    dictionary: bool,
    groups: int,
) -> None:
    path = tmp_path_factory.mktemp("parts") / "x.parquet"
    columns = {f"value/{i}": pa.nulls(rows, kind) for i in range(12)}
    pq.write_table(
        pa.table(columns), path, use_dictionary=dictionary, row_group_size=max(groups, rows // 4, 1)
    )
    with pytest.raises(DamagedFile) as refused:
        read_file(path)
    if rows * len(columns) * 8 > LARGEST:
        assert any(reason in str(refused.value) for reason in ("unpacks to more", "in full"))
