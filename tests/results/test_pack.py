"""Ended runs in one file: every reader finds in it what the folders held."""

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.results.join import merge
from oodbench.results.pack import pack
from oodbench.results.run_spec import State
from oodbench.sweep.cli import app
from tests.helpers.sweeps import outcome
from tests.results.test_cache import add, same, sweep, values


def test_readers_find_packed_runs_as_they_were(tmp_path: Path) -> None:
    """Of five runs, two have not ended; one keeps weights."""
    results, ids = sweep(tmp_path)
    results.run(ids[4]).weights.mkdir()
    before, frames = outcome(results), load_frames(results)
    text = " ".join(CliRunner().invoke(app, ["pack", str(tmp_path)]).stdout.split())
    assert "2 runs moved into" in text and "which holds 2; 3 stay folders: they have not" in text
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted([*ids[:2], ids[4]])
    assert outcome(results) == before
    same(load_frames(results), frames)
    (tmp_path / "cache.arrow").unlink()
    same(load_frames(results), frames)
    same(load_frames(results), frames)  # from a cache of packed runs


def test_unzip_makes_the_folders_again(tmp_path: Path) -> None:
    results, _ = sweep(tmp_path)
    files = {p: p.read_bytes() for p in tmp_path.rglob("*.json*") if p.parent != tmp_path}
    pack(results)
    assert not all(path.exists() for path in files)
    with zipfile.ZipFile(tmp_path / "packed.zip") as archive:
        archive.extractall(tmp_path)
    assert {path: path.read_bytes() for path in files} == files


def test_a_pack_that_was_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    results, ids = sweep(tmp_path)
    before = outcome(results)
    copy = shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    assert pack(results).moved == 3
    shutil.copytree(copy, tmp_path / "runs", dirs_exist_ok=True)  # as if killed before they went
    shutil.rmtree(copy)
    assert outcome(results) == before
    done = pack(results)
    assert (done.moved, done.runs, done.left) == (3, 3, 2)
    assert outcome(results) == before and len(list((tmp_path / "runs").iterdir())) == 2
    results.run(ids[0]).finish(State.DIVERGED, 10, 1.0)
    assert (pack(results).moved, pack(results).moved) == (1, 0)
    assert [state for state, _ in outcome(results).values()].count(State.DIVERGED) == 4


def test_a_packed_run_that_is_trained_again_is_the_one_that_counts(tmp_path: Path) -> None:
    results, ids = sweep(tmp_path)
    info = results.run(ids[3]).info()
    assert info is not None
    pack(results)
    load_frames(results)
    run = results.run(ids[3])
    run.forget()
    assert run.state() is State.PLANNED and run.records() == []
    run.start(info.spec, info.context, info.provenance)
    add(results, ids[3], 10, 0.875)
    run.finish(State.DIVERGED, 10, 1.0)
    wanted = [0.0, 0.1, 0.2, 0.875, 0.4]
    assert values(load_frames(results))[::2] == wanted
    assert pack(results).moved == 1
    (tmp_path / "cache.arrow").unlink()
    assert values(load_frames(results))[::2] == wanted


def flipped(place: int) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[place * len(data) // 100] ^= 4
        path.write_bytes(data)

    return damage


def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "empty": lambda path: path.write_bytes(b""),
    "pipe": replaced(os.mkfifo),
    "folder": replaced(Path.mkdir),
    "loop": replaced(lambda path: path.symlink_to(path)),
    **{f"bit {place}": flipped(place) for place in range(0, 100, 7)},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_pack_gives_the_old_numbers_or_none(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    results, ids = sweep(tmp_path)
    before = outcome(results)
    pack(results)
    damage(tmp_path / "packed.zip")
    for run_id, (state, records) in outcome(results).items():
        assert (state, records) == before[run_id] or not state.complete
    known = load_frames(results).runs.set_index("id")["state"]
    assert [known[i] for i in ids] == [results.run(i).state() for i in ids]


def test_packed_directories_are_merged(tmp_path: Path) -> None:
    results, _ = sweep(tmp_path / "a")
    wanted = outcome(results)
    pack(results)
    merge([tmp_path / "a"], tmp_path / "b")
    assert outcome(Results(tmp_path / "b")) == wanted
