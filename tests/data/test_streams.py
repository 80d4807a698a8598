import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oodbench.data.streams import CHUNK_EXAMPLES, MemoryMapped, ReadAhead, Stored, Subset
from oodbench.datasets import Environment
from oodbench.errors import UserError
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import RunSpec
from oodbench.results.schemas import whole_lines
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.batches import Batches, Examples
from oodbench.train.evaluate import Scored, evaluate, logits
from oodbench.train.execute import execute
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.commands import python
from tests.helpers.data.stored_data import SIDE, rows, write
from tests.helpers.kills import checkpoint_every
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import ended, records_of

CPU = torch.device("cpu")


def saved(folder: Path, *sizes: int) -> list[Path]:
    paths = []
    for i, array in enumerate(rows(*sizes)):
        paths.append(folder / f"{i}.npy")
        np.save(paths[-1], array)
    return paths


class Counting(Stored):
    """Rows in memory that say which reads were made, and can be slow or fail."""

    def __init__(self, rows: Tensor, seconds: float = 0.0) -> None:
        self.shape: tuple[int, ...] = tuple(rows.shape[1:])
        self.rows, self.seconds = rows, seconds
        self.reads: list[list[int]] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: Tensor) -> Tensor:
        time.sleep(self.seconds)
        self.threads.add(threading.current_thread().name)
        self.reads.append(index.tolist())
        if int(index.max()) >= len(self.rows):
            raise UserError("row 99 of the file is torn")
        return self.rows[index]


def test_files_are_read_as_one_after_the_other(tmp_path: Path) -> None:
    paths = saved(tmp_path, 7, 1, 4)
    stored = MemoryMapped(paths)
    whole = torch.from_numpy(np.concatenate(list(rows(7, 1, 4))))
    assert (len(stored), stored.shape) == (12, (5,))
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        index = torch.randint(12, (9,), generator=generator)
        found = stored.read(index)
        assert found.dtype == torch.int32
        assert torch.equal(found, whole[index])
    assert stored.read(torch.empty(0, dtype=torch.long)).shape == (0, 5)
    assert torch.equal(MemoryMapped(paths[2]).read(torch.tensor([3, 0])), whole[[11, 8]])


def test_a_file_that_is_cut_off_or_unlike_the_others_is_refused(tmp_path: Path) -> None:
    first, second = saved(tmp_path, 7, 4)
    content = second.read_bytes()
    second.write_bytes(content[:-10])
    with pytest.raises(UserError, match=f"{second} is not a whole .npy file"):
        MemoryMapped([first, second])
    np.save(second, np.zeros((4, 6), np.int32))
    with pytest.raises(UserError, match=r"holds rows of int32 \(6,\), .* of int32 \(5,\)"):
        MemoryMapped([first, second])
    second.unlink()
    with pytest.raises(UserError, match=f"{second} is missing"):
        MemoryMapped(second)


def test_parts_of_parts(tmp_path: Path) -> None:
    stored = MemoryMapped(saved(tmp_path, 6, 6))
    part = Subset(Subset(stored, torch.tensor([8, 1, 11, 3])), torch.tensor([3, 0, 2]))
    assert len(part) == 3 and part.shape == (5,)
    assert part.read(torch.tensor([2, 0]))[:, 0].tolist() == [110, 30]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_reads_come_in_any_order_and_none_beyond_the_end(workers: int) -> None:
    stored = Counting(torch.arange(40.0).view(20, 2))
    reads = ReadAhead(lambda i: [(stored, torch.tensor([2 * i, 2 * i + 1]))], 10, CPU, workers)
    for place in (0, 1, 2, 7, 8, 9, 3, 9, 0):
        assert torch.equal(reads[place], stored.rows[2 * place : 2 * place + 2])
    assert reads.seconds > 0
    assert max(max(read) for read in stored.reads) < 20
    assert all(name.startswith("loader") == (workers > 0) for name in stored.threads)


@pytest.mark.parametrize("workers", [1, 3])
def test_reads_are_ahead_by_so_many_and_no_more(workers: int) -> None:
    stored = Counting(torch.zeros(1000, 2))
    reads = ReadAhead(lambda i: [(stored, torch.tensor([i]))], 1000, CPU, workers)
    for place in range(30):
        reads[place]
    until = time.monotonic() + 10
    while len(stored.reads) < 30 + workers and time.monotonic() < until:
        time.sleep(0.001)
    assert sorted(stored.reads) == [[i] for i in range(30 + workers)]


def test_an_error_of_a_read_is_the_callers() -> None:
    stored = Counting(torch.zeros(10, 2))
    for workers in (0, 2):
        reads = ReadAhead(lambda i: [(stored, torch.tensor([i]))], 100, CPU, workers)
        with pytest.raises(UserError, match="row 99 of the file is torn"):
            for place in range(20):
                reads[place]


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + torch.rand(x.shape, generator=generator)


def one_at_a_time(step: int) -> list[int]:
    return [(2 * step) % 3]


@pytest.mark.parametrize("environments_at", [None, one_at_a_time])
@pytest.mark.parametrize("transform", [None, noisy])
@pytest.mark.parametrize("batch_size", [4, 0])
@pytest.mark.parametrize("views", [0, 2])
def test_stored_batches_are_those_in_memory(
    transform: Any, environments_at: Any, batch_size: int, views: int
) -> None:
    sizes = (11, 7, 23)
    data = [Examples(torch.randn(n, 2), torch.arange(n)) for n in sizes]
    kept: Any = {"transform": transform, "environments_at": environments_at, "views": views}
    expected = Batches(data, batch_size, 5, **kept)
    for workers in (0, 2):
        stored = [Examples(Counting(torch.as_tensor(e.x)), e.y) for e in data]
        found = Batches(stored, batch_size, 5, **kept, end=15, loader_workers=workers)
        for step in (*range(15), 3, 14):
            assert torch.equal(found[step].x, expected[step].x)
            assert torch.equal(found[step].y, expected[step].y)
            seen, wanted = found[step].views, expected[step].views
            assert (seen is None) == (wanted is None) == (not views)
            assert seen is None or wanted is None or torch.equal(seen, wanted)
        assert found.waiting_seconds > 0 == expected.waiting_seconds


def test_augmentation_depends_on_seed_and_step_alone() -> None:
    data = [Examples(torch.zeros(8, 2), torch.arange(8)) for _ in range(2)]
    a, b, c = (Batches(data, 4, seed, transform=noisy) for seed in (0, 0, 1))
    torch.manual_seed(3)
    assert a[5].x.shape == (2, 4, 2) and a[5].views is None
    assert torch.equal(a[5].x, b[5].x)
    assert not torch.equal(a[5].x, a[6].x)
    assert not torch.equal(a[5].x, c[5].x)


@pytest.mark.parametrize("workers", [0, 2])
def test_stored_environments_are_evaluated_as_in_memory(workers: int) -> None:
    sizes = {"a": 2 * CHUNK_EXAMPLES + 3, "b": 5, "c": CHUNK_EXAMPLES}
    memory = {
        n: Environment(torch.randn(s, 2), (torch.rand(s) > 0.5).float()) for n, s in sizes.items()
    }
    splits = {
        n: {"in": torch.arange(s - 2), "out": torch.arange(s - 2, s)} for n, s in sizes.items()
    }
    stored = memory | {n: replace(memory[n], x=Counting(memory[n].x)) for n in "ac"}

    def predict(x: Tensor) -> Tensor:
        return x[:, :1] - x[:, 1:]

    scored = Scored(stored, splits, Task("binary"), loader_workers=workers)
    assert evaluate(predict, scored) == evaluate(predict, replace(scored, environments=memory))
    found = logits(predict, scored)
    assert all(torch.equal(found[n], predict(memory[n].x)) for n in sizes)
    sizes_read = sorted(len(read) for read in stored["a"].x.reads)  # workers read side by side
    assert sizes_read == [3, 3, *4 * [CHUNK_EXAMPLES]]


def spec(folder: Path, algorithm: str = "ERM", **options: object) -> RunSpec:
    entry = {"name": algorithm, "hparams": {"batch_size": 6}}
    keys = {"network": {"name": "MLP", "hparams": {"width": 4, "depth": 1}}, "evaluate_every": 10}
    return single({"name": "Speckles", **options}, entry, folder, steps=30, **keys)


def lines(run: RunDirectory) -> list[dict[str, Any]]:
    return whole_lines(run.read("metrics.jsonl") or b"")


@pytest.mark.parametrize("algorithm", ["ERM", "TemporalANDMask"])
def test_a_streamed_run_is_the_run_in_memory_even_if_killed(
    tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    checkpoint_every(7, monkeypatch)
    run = spec(tmp_path, algorithm, stored=False)
    monkeypatch.setattr("oodbench.train.execute.program_key", lambda run: None)
    memory = ended(run, tmp_path / "memory", data_dir=tmp_path)
    assert all(line["waiting_seconds"] == 0 for line in lines(memory))

    def die(step: int) -> None:
        if step >= 14:
            raise KeyboardInterrupt

    for workers in (0, 2):
        directory = RunDirectory(tmp_path / f"{workers}")
        directory.path.mkdir()
        settings = TrainSettings(data_dir=tmp_path, loader_workers=workers)
        with pytest.raises(KeyboardInterrupt):
            execute(spec(tmp_path, algorithm), directory, settings, die)
        waited = lines(directory)[-1]["waiting_seconds"]
        assert execute(spec(tmp_path, algorithm), directory, settings) == ("done", "")
        assert records_of(directory) == records_of(memory)
        cost = lines(directory)[-1]
        assert 0 < waited < cost["waiting_seconds"] < cost["training_seconds"]


def test_predictions_use_the_transform_without_augmentation(tmp_path: Path) -> None:
    write(tmp_path)
    run = Run(spec(tmp_path), TrainSettings(data_dir=tmp_path))
    x = run.data.environments["test"].x.read(torch.arange(20))
    run.algorithm.eval()
    assert torch.equal(run.predict(x), run.algorithm.predict(x.float() / 255))
    training = Run(spec(tmp_path), TrainSettings(data_dir=tmp_path)).batches_at(0)[0].x
    assert training.shape == (2, 6, 3, 8, 8) and training.dtype == torch.float32


def peak(folder: Path, kind: str) -> float:
    return float(python(ROOT, "-m", "tests.helpers.data.stored_data", str(folder), kind).stdout)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_memory_of_a_streamed_run_does_not_grow_with_the_data(tmp_path: Path) -> None:
    """Ten times the data are 166 MB more, which show only in a run that holds them in memory."""
    folders = []
    for factor in (1, 10):
        folders.append(tmp_path / str(factor))
        folders[-1].mkdir()
        write(folders[-1], (2400 * factor, 2000 * factor, 1600 * factor), side=SIDE)
    once, tenfold = (peak(folder, "stored") for folder in folders)
    held = peak(folders[1], "memory")
    print(f"streamed {once:.0f} MB, ten times the data {tenfold:.0f} MB, in memory {held:.0f} MB")
    assert tenfold - once < 30  # two runs on the same data differ by up to 15
    assert held - tenfold > 150
