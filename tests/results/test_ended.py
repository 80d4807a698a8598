"""Ended runs in the tables: whatever happens, each counts once with its own numbers, or is named.

A directory of 0.4.0 becomes one of today, with the same numbers, whenever it is interrupted.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oodbench
from oodbench.identity import digest_of
from oodbench.results import directory as compaction
from oodbench.results import parquet
from oodbench.results.directory import Directory, compact
from oodbench.results.predictions import read_predictions
from oodbench.results.read import read_results
from oodbench.results.run_directory import kept_weights
from oodbench.results.schemas import DamagedFile
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.helpers.commands import type_in
from tests.helpers.disks import mounted
from tests.helpers.kills import Killed
from tests.helpers.paths import ROOT
from tests.helpers.results.made import Made, flat
from tests.helpers.results.sweeps import outcome, tiny_file

ROWS = ("ERM", "IRM")
Files = tuple[Path, Path]
"""The files of a part: runs, records."""


def numbers(results: Directory) -> list[str]:
    """All that a table is made of: each value, and each run's state and costs."""
    tables = read_results(results)
    names = ["id", "label", "trial", "state", "last_step", "training_seconds", "error"]
    plain = tables.runs[names].astype({"last_step": float}).astype(object)
    runs = plain.itertuples(index=False, name=None)
    return sorted(str(row) for row in [*runs, *tables.records.itertuples(index=False, name=None)])


def made(path: Path, rows: tuple[str, ...] = ROWS, value: float = 0.25) -> Made:
    return add(Made(path), rows, value)


def add(found: Made, rows: tuple[str, ...], value: float) -> Made:
    for i, label in enumerate(rows):
        for trial in (0, 1):
            found.add("D", label, ("a",), trial, flat(value + i / 8 + trial / 16))
    return found


@pytest.fixture(scope="module")
def whole_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts, one for each row."""
    out = tmp_path_factory.mktemp("parts") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "SMALL", 0)
        runs = made(out, ROWS[:1])
        assert compact(runs.results) == 2
        add(runs, ROWS[1:], 0.5)
        assert compact(runs.results) == 2
    assert len(list((out / "ended").glob("runs-*"))) == 2
    return out


@pytest.fixture
def parts(whole_parts: Path, tmp_path: Path) -> Directory:
    return Directory(Path(shutil.copytree(whole_parts, tmp_path / "out")))


def files_of(results: Directory, label: str) -> Files:
    for runs in (results.path / "ended").glob("runs-*"):
        if label in pq.read_table(runs)["label"].to_pylist():
            return runs, runs.with_name(runs.name.replace("runs-", "records-"))
    raise AssertionError(label)


def instead(which: int, make: Callable[[Path], object]) -> Callable[[Files], None]:
    def damage(files: Files) -> None:
        files[which].unlink()
        make(files[which])

    return damage


def flip(which: int, share: float) -> Callable[[Files], None]:
    def damage(files: Files) -> None:
        data = bytearray(files[which].read_bytes())
        data[int(share * (len(data) - 1))] ^= 1
        files[which].write_bytes(data)

    return damage


def other(which: int, column: str, values: list[Any], kind: Any = None) -> Callable[[Files], None]:
    """Other values at the beginning of a column, in a part whose name fits its bytes; none: no column."""

    def damage(files: Files) -> None:
        tables = [pq.read_table(file) for file in files]
        table, at = tables[which], tables[which].column_names.index(column)
        changed = pa.array(values + table[column].to_pylist()[len(values) :], kind)
        replaced = table.set_column(at, column, changed)
        tables[which] = replaced if values else table.drop_columns([column])
        contents = [parquet.content_of(each) for each in tables]
        key = digest_of(b"".join(contents))
        for file, content in zip(files, contents, strict=True):
            file.unlink()
            file.with_stem(f"{file.stem.partition('-')[0]}-{key}").write_bytes(content)

    return damage


FORGED = {
    "no count": other(1, "count", []),
    "a null id": other(0, "id", [None]),
    "a null trial": other(0, "trial", [None]),
    "no steps": other(0, "steps", [0]),
    "a list for a label": other(0, "label", [["IRM"], ["IRM"]]),
    "texts for values": other(1, "value", ["x"] * 18 * 2, pa.string()),
    "an environment that is null": other(0, "test_environments", [[None]]),
    "no test environment": other(0, "test_environments", [[]]),
    "another state": other(0, "state", ["asleep"]),
    "fewer records": other(0, "records", [17]),
    "records of another run": other(1, "id", ["another"]),
    "a list for hparams": other(0, "hparams", ["[1]"]),
    "a number for classes": other(0, "context", ['{"classes": 5}']),
    "a number for digests": other(0, "provenance", ['{"digests": 5}']),
    "a list for a constant answer": other(0, "constant", ['{"accuracy": [1]}']),
}
DAMAGES: dict[str, Callable[[Files], None]] = {
    **FORGED,
    "runs flipped": flip(0, 0.6),
    "records flipped": flip(1, 0.3),
    "records cut": lambda files: os.truncate(files[1], files[1].stat().st_size - 20),
    "no records": instead(1, lambda path: None),
    "a folder": instead(0, Path.mkdir),
    "a pipe": instead(1, os.mkfifo),
    "a link to nothing": instead(0, lambda path: path.symlink_to("gone")),
    "text": instead(0, lambda path: path.write_text("id,label\n1,ERM\n")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_named_and_left_out(parts: Directory, damage: str) -> None:
    ids = [i for i, spec in parts.specs().items() if spec.label == "IRM"]

    def others() -> list[str]:
        return [line for line in numbers(parts) if not any(i in line for i in ids)]

    whole = others()
    DAMAGES[damage](files_of(parts, "IRM"))
    tables = read_results(parts)
    assert others() == whole
    lost = tables.runs[tables.runs["id"].isin(ids)]
    assert not tables.records["id"].isin(ids).any()
    assert set(lost["state"]) == {"planned"}
    (told,) = map(str, tables.notes)
    assert f"{parts.path / 'ended'}" in told
    if damage in ("no count", "a pipe"):
        shown = type_in("report", "table", parts.path, "--notes", code=0).stdout
        assert "ERM" in shown and "ended" in shown
        type_in("sweep", "status", parts.path, code=0)


def test_a_run_that_parts_tell_otherwise_counts_nowhere_until_it_ends_again(tmp_path: Path) -> None:
    ours, theirs = made(tmp_path / "ours"), made(tmp_path / "theirs", ROWS[1:], value=0.75)
    for each in (ours, theirs):
        compact(each.results)
    for file in (theirs.results.path / "ended").glob("*.parquet"):
        shutil.copy(file, ours.results.path / "ended")
    for _ in range(2):  # a compaction keeps what both say
        tables = read_results(ours.results)
        states = tables.runs.groupby("label")["state"].agg(set).to_dict()
        assert states == {"ERM": {"done"}, "IRM": {"planned"}}
        assert sum("unlike records of the run" in str(note) for note in tables.notes) == 2
        assert compact(ours.results) == 0
    again = made(tmp_path / "again")
    for run_id in theirs.runs:
        shutil.copytree(again.results.run(run_id).path, ours.results.run(run_id).path)
    assert compact(ours.results) == 2
    assert not read_results(ours.results).notes and numbers(ours.results) == numbers(again.results)


AT_EVERY = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
"""A process dies at every such change of the disk."""


class Dying:
    """Lets a process die at one of its changes of the disk: nothing is changed from there on."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                if self.left == -1 and change is shutil.rmtree:  # in its midst
                    next(path for path in Path(arguments[0]).iterdir() if path.is_file()).unlink()
                raise Killed
            return change(*arguments, **options)

        return changed


@contextmanager
def dying(at: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        change = Dying(at)
        for owner, name in ((Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (os, "fsync")):
            patch.setattr(owner, name, change(getattr(owner, name)))
        patch.setattr(shutil, "rmtree", change(shutil.rmtree))
        yield


def deaths(
    before: Path, copy: Path, act: Callable[[Directory], object], every: int = 1
) -> Iterator[Directory]:
    """Copies on which an act has died at each (or every third) change of the disk; it ends on the last."""
    ended, at = False, 0
    while not ended:
        results = Directory(Path(shutil.copytree(before, copy)))
        with suppress(Killed), dying(at):
            act(results)
            ended = True
        yield results
        shutil.rmtree(copy)
        at += every
    assert at > 10


@AT_EVERY
def test_a_compaction_that_is_killed_anywhere_loses_nothing(tmp_path: Path, every: int) -> None:
    wanted = numbers(made(tmp_path / "wanted", (*ROWS, "VREx")).results)
    before = made(tmp_path / "before", ROWS[:1])
    compact(before.results)
    add(before, ("IRM", "VREx"), 0.375)
    for results in deaths(before.results.path, tmp_path / "copy", compact, every):
        assert numbers(results) == wanted
        compact(results)
        assert numbers(results) == wanted and not read_results(results).notes
        assert not list((results.path / "runs").iterdir())
        assert len(pq.read_table(next((results.path / "ended").glob("runs-*")))) == 6
        assert len(list((results.path / "ended").glob("[!.]*"))) == 2


def test_parts_that_a_kill_left_beside_their_union_are_merged_once(parts: Directory) -> None:
    wanted = numbers(parts)
    copies = [(file, file.read_bytes()) for file in (parts.path / "ended").glob("*.parquet")]
    compact(parts)
    for file, content in copies:
        file.write_bytes(content)
    for _ in range(2):
        assert numbers(parts) == wanted
        compact(parts)
    assert len(list((parts.path / "ended").glob("*.parquet"))) == 2


@pytest.mark.slow
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=400k") as disk:
        results = made(disk / "out").results
        wanted = numbers(results)
        filling = disk / "filling"
        with pytest.raises(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        for _ in range(10):
            assert numbers(results) == wanted
            size = filling.stat().st_size
            os.truncate(filling, max(0, size - 2**12))
            try:
                assert compact(results) in (0, 4)
            except OSError:
                continue
            break
        assert numbers(results) == wanted and not list((disk / "out" / "runs").iterdir())


def test_readers_and_compactions_at_once_see_each_run_once(tmp_path: Path) -> None:
    results = made(tmp_path / "out", tuple(f"M{i}" for i in range(9))).results
    wanted = numbers(results)
    with ThreadPoolExecutor() as pool:
        moved = [pool.submit(compact, results, patient) for patient in (True, False, True)]
        read = [pool.submit(numbers, results) for _ in range(6)]
        states = [pool.submit(outcome, results) for _ in range(2)]
    assert sum(each.result() for each in moved) == 18
    assert all(each.result() == wanted for each in read)
    assert all(state == "done" for each in states for state, _ in each.result().values())


NAMES = ("'; DROP TABLE runs; --", "it's", "50%", "#1#2", "x@y", "../up", "*.parquet", "step")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_plain_text(tmp_path: Path, name: str) -> None:
    runs = Made(tmp_path / "out")
    runs.environments = ("a", name, f"{name}/{name}")
    run_id = runs.add(name, name, (name,), 0, flat(0.25), metric=name)
    wanted = numbers(runs.results)
    assert compact(runs.results) == 1 and numbers(runs.results) == wanted
    frame = oodbench.load(tmp_path / "out")
    assert set(frame["environment"]) == {*runs.environments} and set(frame["metric"]) == {name}
    assert set(frame["label"]) == {name} and set(frame["id"]) == {run_id}


SHORT: dict[str, Any] = {"trials": 1, "steps": 20, "evaluate_every": 10}


@pytest.mark.slow
def test_rows_are_those_of_the_file_and_no_rename_trains_a_run(tmp_path: Path) -> None:
    def launched(*rows: object) -> pd.DataFrame:
        file = tiny_file(tmp_path, **SHORT, algorithms=list(rows))
        launch(read_sweep(file), LaunchOptions(out=tmp_path / "out", launcher="debug"))
        return oodbench.load(tmp_path / "out")

    def values(frame: pd.DataFrame, label: str) -> list[float]:
        return [float(v) for v in frame.loc[frame["label"] == label, "value"]]

    first = launched("ERM")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oodbench.train.execute.begin", lambda *_: pytest.fail("it is trained"))
        renamed = launched({"name": "ERM", "label": "base"})
        assert set(renamed["label"]) == {"base"} and values(renamed, "base") == values(first, "ERM")
        both = launched("ERM", {"name": "ERM", "label": "it's @ 50%"})
    assert values(both, "ERM") == values(both, "it's @ 50%") == values(first, "ERM")
    assert both["id"].nunique() == 1 and "ERM" in set(both["label"])
    assert "it's @ 50%" in type_in("report", "table", tmp_path / "out", code=0).stdout
    edited = launched({"name": "ERM", "hparams": {"lr": 0.5}})
    assert edited["id"].nunique() == 2 and set(edited["label"]) == {"ERM", "it's @ 50%"}
    assert set(edited.loc[edited["label"] == "ERM", "hparams.lr"]) == {0.5}
    (tmp_path / "out" / "sweep.json").unlink()  # the results are there without their plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oodbench.train.execute.begin", lambda *_: pytest.fail("it is trained"))
        assert values(launched("ERM"), "ERM") == values(first, "ERM")


@pytest.mark.slow
def test_a_renamed_dataset_and_a_removed_equal_row_take_all_their_runs(tmp_path: Path) -> None:
    several: dict[str, Any] = SHORT | {"trials": 2, "hparam_draws": 2}

    def planned(label: str, *rows: object, **changes: object) -> pd.DataFrame:
        data = [{"name": "LinearSEM", "label": label}]
        values: dict[str, Any] = several | {"datasets": data, "algorithms": list(rows)} | changes
        options = LaunchOptions(out=tmp_path / "out", launcher="debug")
        launch(read_sweep(tiny_file(tmp_path, **values)), options)
        return Directory(tmp_path / "out").rows()

    before = planned("old", "ERM", {"name": "ERM", "label": "base"})
    renamed = planned("new", "ERM", {"name": "ERM", "label": "base"}, hparam_draws=1)
    assert set(renamed["dataset_label"]) == {"new"} and len(renamed) == len(before) == 8
    one = planned("new", {"name": "ERM", "label": "base"}, trials=1)
    assert set(one["label"]) == {"base"} and len(one) == one["id"].nunique() == 4
    shown = type_in("report", "table", tmp_path / "out", "--notes", code=0).stdout
    assert "hparam draws: 2 (random)" in shown and "Several settings" not in shown


@pytest.mark.slow
def test_clean_deletes_all_of_a_run_that_is_planned_no_more(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = LaunchOptions(out=out, launcher="debug", keep_weights=("last",))
    launch(read_sweep(tiny_file(tmp_path, **SHORT)), options)
    results = Directory(out)
    assert {p.name for p in out.glob("kept/*/*")} == {"weights"}
    first, second = results.rows()["id"]
    plan = results.plan()
    results.store(plan["name"], plan["settings"], plan["rows"][1:])
    assert "1 run outside the sweep" in type_in("sweep", "clean", out, "--yes").output
    assert not results.run(first).is_in_tables and results.run(second).state() == "done"
    assert [path.name for path in out.glob("kept/*")] == [second]
    assert "nothing to delete" in type_in("sweep", "clean", out, "--yes").output


def test_a_table_of_before_a_column_was_added_is_read_as_runs_were_then(tmp_path: Path) -> None:
    results = made(tmp_path / "out").results
    compact(results)
    (file,) = results.path.glob("ended/runs-*.parquet")
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["noise", "test_order"]), file, store_schema=False)
    found = parquet.read_table(file, parquet.RUNS)
    assert found["noise"].null_count == len(found)
    assert {*found["test_order"].to_pylist()} == {"stored"}
    pq.write_table(table.drop_columns(["trial"]), file, store_schema=False)
    with pytest.raises(DamagedFile, match="has no column trial"):
        parquet.read_table(file, parquet.RUNS)


def test_a_file_that_claims_more_rows_than_it_can_hold_is_not_read() -> None:
    content = parquet.content_of(parquet.SPEC.empty_table())
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    none, many = (
        b"\x16\x00",
        b"\x16\xfe" + b"\xff" * 6 + b"\x7f",
    )  # the number of rows in the footer
    footer = content[start:-8].replace(none, many, 1)
    claiming = content[:start] + footer + len(footer).to_bytes(4, "little") + content[-4:]
    with pytest.raises(DamagedFile, match=r"^it has more rows than its bytes can hold$"):
        parquet.parsed(claiming, parquet.SPEC, "it")


OLD = ROOT / "tests" / "golden" / "results-0.4.0"
"""Two runs that ended and one that failed; numbers.json has what 0.4.0 read of them."""
IRM = "917bac55623c5b77"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "out"))


def loaded(out: Path) -> list[str]:
    names = ["label", "step", "environment", "split", "metric", "value", "count"]
    frame = oodbench.load(out)[names].astype(object)
    rows = frame.where(frame.notna(), None).itertuples(index=False, name=None)
    return sorted(repr((*row[:5], float(row[5]), int(row[6]))) for row in rows)


def wanted(*labels: str) -> list[str]:
    rows = json.loads((OLD / "numbers.json").read_text())
    return sorted(repr(tuple(row)) for row in rows if row[0] in labels)


def test_it_has_the_same_numbers_states_weights_and_predictions(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loaded(out) == wanted("mine", "IRM")
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("of 0.4.0: 3 of 3 runs moved to today's form")
    results = Directory(out)
    of_label = {spec.label: results.run(i) for i, spec in results.specs().items()}
    assert of_label["Raising"].state_and_reason() == ("failed", "it cannot go on")
    assert kept_weights(of_label["IRM"]).keys() == {("last", 20)}
    assert read_predictions(of_label["IRM"], 20).keys() == {"0", "1", "2", "test"}
    assert of_label["IRM"].made_by()["oodbench"] == "0.4.0"
    assert compact(results) == 2 and loaded(out) == wanted("mine", "IRM")
    assert "0.4.0" not in type_in("report", "table", out, code=0).stderr


@AT_EVERY
@pytest.mark.filterwarnings("ignore")
def test_interrupted_anywhere_it_goes_on(out: Path, tmp_path: Path, every: int) -> None:
    for results in deaths(out, tmp_path / "copy", read_results, every):
        assert loaded(results.path) == wanted("mine", "IRM")
        (run_id,) = (i for i, spec in results.specs().items() if spec.label == "IRM")
        assert kept_weights(results.run(run_id)).keys() == {("last", 20)}


def test_two_readers_at_once_move_it_once(out: Path) -> None:
    with ThreadPoolExecutor() as pool:
        found = [pool.submit(loaded, out) for _ in range(4)]
    assert all(each.result() == wanted("mine", "IRM") for each in found)


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "done.json"])
def test_a_damaged_run_is_not_taken_for_a_whole_one(out: Path, name: str) -> None:
    file = out / "runs" / IRM / name
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    assert loaded(out) == wanted("mine")
    assert sorted(read_results(Directory(out)).runs["state"]) == ["done", "failed", "planned"]
