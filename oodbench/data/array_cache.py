"""Arrays that are worked out once and kept on disk: whole or not there, whatever is killed."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from oodbench.data.streams import ReadAhead, Stored, chunk_size
from oodbench.errors import UserError
from oodbench.files import is_part, whole_folder


@dataclass(frozen=True)
class Rows:
    """An array to be kept, a row an example."""

    count: int
    shape: tuple[int, ...]
    dtype: type[np.generic]
    pieces: Callable[[], Iterator[Tensor]]
    """The rows (n, *shape) in their order, some at a time."""

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return self.count * int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def pieces(stored: Stored, workers: int) -> Iterator[Tensor]:
    """All examples in their order, read by the pool of `workers` threads."""
    parts = torch.split(torch.arange(len(stored)), chunk_size(stored))
    reads = ReadAhead(lambda i: [(stored, parts[i])], len(parts), torch.device("cpu"), workers)
    for place in range(len(parts)):
        yield reads[place]


def keep(folder: Path, title: str, arrays: Mapping[str, Rows]) -> None:
    """Write each array to `folder`/NAME.npy unless the folder is there; it appears with all of them.

    Says beforehand how much it will be and shows a bar. What a killed attempt left is removed. Raises
    UserError if the disk has no room for it.
    """
    # here, as rich draws from Python's generator when it is imported
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from oodbench.terminal import terminal

    parent = folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    console = terminal(stderr=True)
    with FileLock(parent / "lock"):
        if folder.is_dir():
            return
        for left in parent.iterdir():
            if is_part(left):
                shutil.rmtree(left)
        size, free = sum(rows.nbytes for rows in arrays.values()), shutil.disk_usage(parent).free
        count = sum(rows.count for rows in arrays.values())
        console.print(f"{title}: {count} examples, {size / 1e9:.3g} GB, into {folder}")
        if size > free:
            raise UserError(
                f"{title}: {folder} needs {size / 1e9:.3g} GB and {free / 1e9:.3g} GB are free"
            )
        columns = (TextColumn("examples"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with whole_folder(folder) as part, Progress(*columns, console=console) as progress:
            task = progress.add_task("examples", total=count)
            for name, rows in arrays.items():
                _write(part / f"{name}.npy", rows, lambda n: progress.advance(task, n))


def _write(file: Path, rows: Rows, advance: Callable[[int], None]) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(rows.dtype)),
        "fortran_order": False,
        "shape": (rows.count, *rows.shape),
    }
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for piece in rows.pieces():
            stream.write(np.ascontiguousarray(piece.numpy(), rows.dtype).data)
            advance(len(piece))
