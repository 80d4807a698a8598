import json
import os
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import oodbench
from oodbench.results import read
from oodbench.results.directory import Results
from oodbench.results.read import COSTS, read_results
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.tables import Tables
from tests.results.test_directory import CONTEXT
from tests.results.test_run_spec import SPEC


def spec(trial: int) -> RunSpec:
    hparams = {"lr": 0.1, "nested": [1, 2]}
    return replace(SPEC, hparams=hparams, trial=trial, steps=20, evaluate_every=10)


def sweep(path: Path, trials: int = 5) -> tuple[Results, list[str]]:
    """Trials 0 and 1 have not ended; the others have, with one record each."""
    results = Results(path)
    specs = {spec(t).id: spec(t) for t in range(trials)}
    results.write_plan("s", {}, specs)
    for trial, run in enumerate(specs.values()):
        directory = results.run(run.id)
        directory.path.mkdir(parents=True)
        directory.start(run, CONTEXT, {"host": "h"})
        add(results, run.id, 10, trial / 10)
        if trial > 1:
            directory.finish(State.DIVERGED, 10, 1.0)
    return results, list(specs)


def add(results: Results, run_id: str, step: int, value: float) -> None:
    keys = ("environment", "split", "metric", "value", "count")
    rows = [("t", "in", "accuracy", value, 8), (None, None, "own", value / 2, 1)]
    evaluations = [dict(zip(keys, row, strict=True)) for row in rows]
    cost = {"training_seconds": step / 10, "evaluation_seconds": 0.5, "memory_mb": 3.0}
    cost["waiting_seconds"] = step / 40
    results.run(run_id).append(
        {"step": step, "train": {"x": step}, "cost": cost, "evaluations": evaluations}
    )


def same(a: Tables, b: Tables) -> None:
    pd.testing.assert_frame_equal(a.runs, b.runs)
    names = {name: object for name in ("id", "environment", "split", "metric")}
    pd.testing.assert_frame_equal(a.metrics.astype(names), b.metrics.astype(names))


def values(frames: Tables) -> list[float]:
    return [float(v) for v in frames.records["value"]]


def test_a_second_reading_gives_the_same_from_the_cache(tmp_path: Path) -> None:
    results, ids = sweep(tmp_path)
    first = read_results(results)
    assert values(first)[::2] == [0.0, 0.1, 0.2, 0.3, 0.4]
    cost = first.runs[["last_step", *COSTS]]
    assert cost.drop_duplicates().to_numpy().tolist() == [[10, 1.0, 0.25, 0.5, 3.0]]
    assert (tmp_path / "cache.arrow").is_file()
    text = results.run(ids[3]).path / "metrics.jsonl"
    stat = text.stat()
    text.write_bytes(b"x" * stat.st_size)  # not read again: the cache has it
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    same(read_results(results), first)


def test_the_cache_holds_ended_runs_alone_and_sees_their_files_change(tmp_path: Path) -> None:
    results, ids = sweep(tmp_path)
    read_results(results)
    add(results, ids[0], 20, 0.9)  # still running
    assert 0.9 in values(read_results(results))
    results.run(ids[0]).finish(State.DIVERGED, 20, 1.0)
    assert read_results(results).runs["state"].tolist()[0] == "diverged"
    frames = read_results(results)
    assert list(frames.records["id"].drop_duplicates()) == ids  # in the order of the plan


def test_a_run_that_is_trained_anew_is_read_anew(tmp_path: Path) -> None:
    results, ids = sweep(tmp_path)
    read_results(results)
    directory = results.run(ids[2]).path
    for name in ("done.json", "metrics.jsonl"):
        (directory / name).unlink()
    assert read_results(results).runs["state"].tolist()[2] == "lost"
    add(results, ids[2], 10, 0.55)
    results.run(ids[2]).finish(State.DIVERGED, 10, 1.0)
    assert 0.55 in values(read_results(results))


def of_runs(about: dict[str, Any], **values: Any) -> dict[str, Any]:
    return about | {"runs": {run_id: run | values for run_id, run in about["runs"].items()}}


def forge(cache: Path, change: Callable[[pa.Table, dict[str, Any]], tuple[pa.Table, Any]]) -> None:
    table = pa.ipc.open_file(cache.read_bytes()[read.CHECKSUM :]).read_all()
    table, about = change(table, json.loads(zlib.decompress(table.schema.metadata[b"oodbench"])))
    text = about if isinstance(about, str) else json.dumps(about)
    table = table.replace_schema_metadata({b"oodbench": zlib.compress(text.encode())})
    content = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(content, table.schema, options=options) as writer:
        writer.write_table(table)
    data = memoryview(content.getvalue())
    cache.write_bytes(bytes(read._checksum(data)) + bytes(data))


FORGED: list[Callable[[pa.Table, dict[str, Any]], tuple[pa.Table, Any]]] = [
    lambda t, a: (t.set_column(0, t.schema.field(0), pa.array([99] * len(t), pa.int32())), a),
    lambda t, a: (t.set_column(0, t.schema.field(0), pa.nulls(len(t), pa.int32())), a),
    lambda t, a: (t.append_column("more", t["step"]), a),
    lambda t, a: (t.slice(0, 0), a),
    lambda t, a: (pa.concat_tables([t, t]), a),
    lambda t, a: (t, a | {"version": 0}),
    lambda t, a: (t, of_runs(a, context="x")),
    lambda t, a: (t, of_runs(a, provenance=["x"])),
    lambda t, a: (t, of_runs(a, state="running")),
    lambda t, a: (t, "[" * 10**5),
]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda _: b"\x80\x04", *FORGED])
def test_a_damaged_or_forged_cache_is_written_anew(tmp_path: Path, damage: Any) -> None:
    results, _ = sweep(tmp_path)
    first, cache = read_results(results), tmp_path / "cache.arrow"
    whole = cache.read_bytes()
    if damage in FORGED:
        forge(cache, damage)
    else:
        cache.write_bytes(damage(whole))
    same(read_results(results), first)
    assert cache.read_bytes() == whole and not list(tmp_path.glob(".cache*"))


def test_readers_at_once_disturb_nobody(tmp_path: Path) -> None:
    results, _ = sweep(tmp_path, 40)
    wanted = read_results(results)
    (tmp_path / "cache.arrow").unlink()
    found: list[Tables] = []
    readers = [
        threading.Thread(target=lambda: found.append(read_results(results))) for _ in range(8)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(found) == 8
    for frames in (*found, read_results(results)):
        same(frames, wanted)


def test_torn_and_foreign_lines(tmp_path: Path) -> None:
    results, ids = sweep(tmp_path)
    text = results.run(ids[0]).path / "metrics.jsonl"
    whole = text.read_text()
    add(results, ids[0], 20, 0.9)
    text.write_text(text.read_text()[:-9])
    assert values(read_results(results))[::2] == [0.0, 0.1, 0.2, 0.3, 0.4]
    text.write_text(whole + "}{\n" + whole)  # what follows a torn line is not trusted
    assert len(read_results(results).records) == 10
    text.write_text(whole + '{"step": 3}\n')
    assert len(read_results(results).records) == 10


def test_a_sweep_that_has_not_started(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_plan("s", {}, {spec(0).id: spec(0)})
    frames = read_results(results)
    assert frames.records.empty and frames.runs["state"].tolist() == ["planned"]
    assert oodbench.load(tmp_path).empty


def test_records_go_out_as_one_tidy_frame(tmp_path: Path) -> None:
    _, ids = sweep(tmp_path / "results")
    frame = oodbench.load(tmp_path / "results")
    assert len(frame) == 10 and list(frame.columns[:4]) == ["id", "dataset", "label", "algorithm"]
    row = frame[(frame["id"] == ids[3]) & (frame["metric"] == "accuracy")].iloc[0]
    assert (row["trial"], row["state"], row["environment"], row["value"]) == (
        3,
        "diverged",
        "t",
        0.3,
    )
    assert row["test_environments"] == "t" and row["hparams.lr"] == 0.1
    assert (row["training_seconds"], row["waiting_seconds"]) == (1.0, 0.25)
    assert row["hparams.nested"] == "[1, 2]"
    frame.to_parquet(tmp_path / "all.parquet")
    back = pd.read_parquet(tmp_path / "all.parquet")
    pd.testing.assert_frame_equal(
        back.astype(object), frame.astype(object), check_dtype=False, check_names=False
    )


@pytest.mark.parametrize("kind", ["what it says of runs", "its rows"])
def test_a_cache_that_came_with_somebodys_results_is_not_unpacked(
    kind: str, tmp_path: Path
) -> None:
    results, ids = sweep(tmp_path)
    read_results(results)
    rows = pa.table({f.name: pa.nulls(2**20, f.type) for f in read.METRICS}, read.METRICS)
    more = " " * (2**27 if kind == "what it says of runs" else 0)
    cache = tmp_path / "cache.arrow"
    forge(cache, lambda _, about: (rows, json.dumps(of_runs(about, stamp=[0] * 9)) + more))
    tracemalloc.start()
    before = pa.default_memory_pool().max_memory()
    frames = read_results(results)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(frames.runs) == len(ids)
    assert peak < 2**23 and pa.default_memory_pool().max_memory() <= max(before, 2**23)
