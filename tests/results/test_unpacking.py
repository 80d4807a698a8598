"""A board's part from a stranger takes memory in proportion to its file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oodbench.results.parts import read_file
from oodbench.results.schemas import DamagedFile


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"label": pa.repeat("a" * 1000, 10**5)}),
        pa.table({"step": pa.repeat(pa.scalar(1, pa.int32()), 10**7)}),
    ],
)
def test_rows_are_counted_before_they_are_unpacked(table: pa.Table, tmp_path: Path) -> None:
    file = tmp_path / "part.parquet"
    pq.write_table(table, file, compression="zstd")
    assert file.stat().st_size < 10**5
    before = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    with pytest.raises(DamagedFile, match=r"unpacks to more than 64 MB"):
        read_file(file)
    assert pool.bytes_allocated() <= before + 2**20
