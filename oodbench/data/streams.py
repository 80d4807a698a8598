"""Inputs that stay on disk: threads that read ahead, and arrays that are computed once and kept."""

import hashlib
import math
import mmap
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from oodbench.errors import UserError
from oodbench.files import is_temporary, whole_folder

if TYPE_CHECKING:
    import rich.progress

T = TypeVar("T")

CHUNK_VALUES = 2**24
CHUNK_EXAMPLES = 256
"""The most values and examples of a chunk in which stored examples are evaluated."""
DIGESTED = 16
"""The number of stored examples that are hashed into a digest."""


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy values on the CPU to `device` without waiting, through pinned memory."""
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


class Stored(ABC):
    """Inputs of an environment that are read when they are needed, instead of a tensor in memory."""

    shape: tuple[int, ...]
    """The shape of an example as it is read, before `Dataset.transform`."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @abstractmethod
    def read(self, index: Tensor) -> Tensor:
        """The examples (n, *shape) at the positions `index` (n,), both on the CPU.

        Equal calls must return equal examples, and several threads may call at once. Raises UserError for
        data that cannot be read.
        """

    def __getitem__(self, index: Tensor) -> "Subset":
        """The examples at `index` (n,), not read yet."""
        return Subset(self, index.cpu())


def read(inputs: Tensor | Stored, index: Tensor) -> Tensor:
    """The inputs of an environment at the positions `index` (n,)."""
    return inputs.read(index) if isinstance(inputs, Stored) else inputs[index]


def digest_of(inputs: Tensor | Stored) -> str:
    """A hash of the inputs of an environment; of stored inputs, `DIGESTED` at equal distances."""
    if isinstance(inputs, Stored):
        some = torch.linspace(0, len(inputs) - 1, min(len(inputs), DIGESTED)).long()
        inputs = inputs.read(some)
    data = inputs.detach().cpu().contiguous()
    return hashlib.sha256(data.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


class Subset(Stored):
    """The examples of other stored data at the positions `index` (n,)."""

    def __init__(self, whole: Stored, index: Tensor) -> None:
        self.shape = whole.shape
        self._whole, self._index = whole, index

    def __len__(self) -> int:
        return len(self._index)

    def read(self, index: Tensor) -> Tensor:
        """The examples at `index`."""
        return self._whole.read(self._index[index])


class Changed(Stored):
    """The examples of other stored data after a function (n, *shape) -> (n, *new shape)."""

    def __init__(self, whole: Stored, change: Callable[[Tensor], Tensor]) -> None:
        self._whole, self._change = whole, change
        self.shape = tuple(self.read(torch.zeros(1, dtype=torch.long)).shape[1:])

    def __len__(self) -> int:
        return len(self._whole)

    def read(self, index: Tensor) -> Tensor:
        """The examples at `index`, changed."""
        return self._change(self._whole.read(index))


class Prepared(Stored):
    """Examples that a function prepares one by one, each from an item such as a path."""

    def __init__(
        self, items: Sequence[T], prepare: Callable[[T], Tensor], shape: tuple[int, ...]
    ) -> None:
        self.shape = shape
        self._items, self._prepare = items, prepare

    def __len__(self) -> int:
        return len(self._items)

    def read(self, index: Tensor) -> Tensor:
        """The examples at `index`; raises UserError for one that cannot be read."""
        return torch.stack([self._prepare(self._items[i]) for i in index.tolist()])


class MemoryMapped(Stored):
    """The rows of .npy files, one file after the other.

    Pages of memory are released after each read, so that memory does not grow with the data.
    """

    def __init__(self, files: Path | Sequence[Path]) -> None:
        """Map the files; raises UserError for a file that is missing, damaged or unlike the first one."""
        paths = [files] if isinstance(files, Path) else list(files)
        self._arrays = [_mapped(path) for path in paths]
        first = self._arrays[0]
        for path, array in zip(paths, self._arrays, strict=True):
            if (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
                raise UserError(
                    f"{path} holds rows of {array.dtype} {array.shape[1:]}, "
                    f"{paths[0]} of {first.dtype} {first.shape[1:]}"
                )
        self.shape = first.shape[1:]
        self._ends = np.cumsum([len(array) for array in self._arrays])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, index: Tensor) -> Tensor:
        """The rows at `index`."""
        wanted = index.numpy()
        files = np.searchsorted(self._ends, wanted, side="right")
        rows = np.empty((len(wanted), *self.shape), self._arrays[0].dtype)
        for file in np.unique(files):
            array, here = self._arrays[file], files == file
            rows[here] = array.take(wanted[here] - self._ends[file] + len(array), axis=0)
            pages = array.base
            assert isinstance(pages, mmap.mmap)
            if hasattr(mmap, "MADV_DONTNEED"):  # otherwise read pages stay in the process's memory
                pages.madvise(mmap.MADV_DONTNEED)
        return torch.from_numpy(rows)


def _mapped(path: Path) -> np.memmap:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing") from error
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is not a whole .npy file: {error}") from error
    if not isinstance(array, np.memmap) or array.ndim == 0:
        raise UserError(f"{path} is not a .npy file with one row an example")
    return array


def chunk_size(stored: Stored) -> int:
    """The number of stored examples that are evaluated at a time."""
    return max(1, min(CHUNK_EXAMPLES, CHUNK_VALUES // math.prod(stored.shape)))


Request = Sequence[tuple[Stored, Tensor]]
"""Pairs of stored data and the positions (n,) to read from them; the results are concatenated."""


@dataclass
class ReadAhead:
    """A series of reads that a pool of threads does before their results are needed.

    At most `workers` + 1 results are in memory. With 0 workers, the caller's thread reads on demand.
    """

    request: Callable[[int], Request]
    """A function that returns the request at a position, from 0 to `end` - 1."""
    end: int
    device: torch.device
    workers: int
    finish: Callable[[Tensor, int], Tensor] = lambda x, position: x
    """A function of the examples, on the CPU, and their position, which the threads apply."""
    seconds: float = 0.0
    """The total time spent waiting for reads."""
    _reads: dict[int, Future[Tensor]] = field(default_factory=dict)

    def __getitem__(self, position: int) -> Tensor:
        """The examples at `position`, on the device; the next positions are read ahead."""
        start = time.perf_counter()
        if self.workers == 0:
            examples = self._read(position, self.request(position))
        else:
            wanted = range(position, min(position + self.workers + 1, self.end))
            for other in self._reads.keys() - set(wanted):
                self._reads.pop(other).cancel()
            for new in wanted:
                if new not in self._reads:
                    wish = self.request(new)
                    self._reads[new] = _pool(self.workers).submit(self._read, new, wish)
            examples = self._reads.pop(position).result()
        self.seconds += time.perf_counter() - start
        return examples.to(self.device, non_blocking=True)

    def _read(self, position: int, request: Request) -> Tensor:
        parts = [stored.read(index) for stored, index in request]
        whole = self.finish(torch.cat(parts) if len(parts) > 1 else parts[0], position)
        return whole if self.device.type == "cpu" else whole.pin_memory()


@lru_cache
def _pool(workers: int) -> ThreadPoolExecutor:
    # threads suffice, as decoding and copying release Python's lock
    return ThreadPoolExecutor(workers, thread_name_prefix="loader")


@dataclass(frozen=True)
class Rows:
    """An array to be written, with a row for each example."""

    count: int
    shape: tuple[int, ...]
    dtype: type[np.generic]
    pieces: Callable[[], Iterator[Tensor]]
    """A function that yields the rows in order, in chunks (n, *shape)."""


def pieces(stored: Stored, workers: int) -> Iterator[Tensor]:
    """All examples in order, in chunks (n, *shape) that `workers` threads read ahead."""
    parts = torch.split(torch.arange(len(stored)), chunk_size(stored))
    reads = ReadAhead(lambda i: [(stored, parts[i])], len(parts), torch.device("cpu"), workers)
    for position in range(len(parts)):
        yield reads[position]


def progress(count: str = "MofNCompleteColumn") -> "rich.progress.Progress":
    """Progress bars with rich's column `count`, on standard error, and hidden unless that is a terminal."""
    import rich.progress as bars  # its import draws random numbers

    from oodbench.terminal import terminal

    console = terminal(stderr=True)
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), getattr(bars, count)())
    hidden = not console.is_interactive
    return bars.Progress(*columns, bars.TimeRemainingColumn(), console=console, disable=hidden)


def keep(folder: Path, title: str, arrays: Mapping[str, Rows]) -> None:
    """Write each array to `folder`/NAME.npy; the folder appears when all are complete.

    Nothing is written if the folder exists. The size is printed first, a bar shows progress, and the
    remains of interrupted attempts are removed. Raises UserError if the disk lacks room.
    """
    from oodbench.terminal import terminal

    parent = folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    console = terminal(stderr=True)
    with FileLock(parent / "lock"):
        if folder.is_dir():
            return
        for left in parent.iterdir():
            if is_temporary(left):
                shutil.rmtree(left)
        count = sum(rows.count for rows in arrays.values())
        each = (r.count * math.prod(r.shape) * np.dtype(r.dtype).itemsize for r in arrays.values())
        size = sum(each) / 1e9
        free = shutil.disk_usage(parent).free / 1e9
        console.print(f"{title}: {count} examples, {size:.3g} GB, into {folder}")
        if size > free:
            raise UserError(f"{title}: {folder} needs {size:.3g} GB and {free:.3g} GB are free")
        with whole_folder(folder) as part, progress() as bar:
            task = bar.add_task("examples", total=count)
            for name, rows in arrays.items():
                for written in _written(part / f"{name}.npy", rows):
                    bar.advance(task, written)


def _written(file: Path, rows: Rows) -> Iterator[int]:
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(rows.dtype)),
        "fortran_order": False,
        "shape": (rows.count, *rows.shape),
    }
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for piece in rows.pieces():
            stream.write(np.ascontiguousarray(piece.numpy(), rows.dtype).data)
            yield len(piece)
