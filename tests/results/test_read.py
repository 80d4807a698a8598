"""Runs' records as one table."""

import json
from pathlib import Path

import pytest

from oodbench.results import read
from oodbench.results.read import parse_runs
from tests.results.test_cache import add, sweep

LARGEST = 2**31 - 1


def line(step: int, count: int) -> str:
    columns = [{"metrics": ["accuracy"], "splits": [["t", "in", [count]]]}]
    return json.dumps({"step": step, "columns": columns, "values": [0.5]})


def test_the_first_step_and_the_largest_numbers_are_read(tmp_path: Path) -> None:
    results, ids = sweep(tmp_path)
    text = results.run(ids[0]).path / "metrics.jsonl"
    text.write_text(f"{line(0, 0)}\n{line(LARGEST, LARGEST)}\n")
    found = parse_runs(results, ids, {})
    rows = found.metrics.filter(found.metrics["run"].to_numpy() == 0)
    assert rows["step"].to_pylist() == rows["count"].to_pylist() == [0, LARGEST]


@pytest.mark.parametrize(("step", "count"), [(-1, 8), (LARGEST + 1, 8), (20, -1), (20, 2**31)])
def test_a_number_out_of_its_range_ends_the_records(tmp_path: Path, step: int, count: int) -> None:
    results, ids = sweep(tmp_path)
    with (results.run(ids[0]).path / "metrics.jsonl").open("a") as file:
        file.write(f"{line(step, count)}\n{line(30, 8)}\n")
    found = parse_runs(results, ids, {})
    assert found.runs[ids[0]]["last_step"] == 10
    assert found.metrics["run"].to_pylist() == [run for run in range(5) for _ in range(2)]


def test_runs_of_several_parts_keep_their_own_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five runs two, then two, then one are parsed together; one of the first part is torn."""
    results, ids = sweep(tmp_path)
    whole = parse_runs(results, ids, {})
    monkeypatch.setattr(read, "CHUNK", 2)
    assert parse_runs(results, ids, {}).metrics.to_pylist() == whole.records.to_pylist()
    add(results, ids[1], 20, 0.9)
    with (results.run(ids[1]).path / "metrics.jsonl").open("a") as file:
        file.write('{"step')
    runs = parse_runs(results, ids, {}).metrics["run"].to_pylist()
    assert runs == [0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4]
