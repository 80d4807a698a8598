"""Lines of metrics.jsonl: what is read is what was written, to the last bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import State
from oodbench.results.schemas import COSTS
from tests.results.test_directory import CONTEXT
from tests.results.test_run_spec import SPEC

Row = tuple[str | None, str | None, str, float | None, int]
ROWS: list[Row] = [
    ("a", "in", "accuracy", 581 / 720, 720),
    ("a", "in", "accuracy", 0.1 + 0.2, 719),
    ("a", "out", "loss", None, 3),
    ("a/b", "in", "m", 5e-324, 3),
    ("b", "in", "m/a", 1e300, 3),
    ("a", "in", "b#1", -1.0, 3),
    ("a", "in", "b#1", -2.0, 4),
    ("x", "in", "train", 0.5, 4),
    (None, None, "step", -0.0, 1),
    (None, None, "memory_mb", 7.0, 1),
]


def record(step: int, rows: list[Row]) -> dict[str, Any]:
    keys = ("environment", "split", "metric", "value", "count")
    evaluations = [dict(zip(keys, row, strict=True)) for row in rows]
    about = {"train": {"x": 1.5}, "cost": {"memory_mb": 3.5}}
    return {"step": step, "evaluations": evaluations, **about}


def kept(*records: dict[str, Any]) -> list[dict[str, Any]]:
    """Records as they are read again: their costs are columns of the run."""
    return [{key: value for key, value in each.items() if key != "cost"} for each in records]


def run_of(path: Path, *records: dict[str, Any]) -> RunDirectory:
    results = Directory(path)
    results.write_plan("s", {}, [SPEC])
    run = results.run(SPEC.id)
    run.path.mkdir(parents=True)
    run.start(SPEC, CONTEXT, {})
    for each in records:
        run.append(each)
    return run


@pytest.mark.parametrize("later", [ROWS, ROWS[::-1], ROWS[3:], []])
def test_what_was_written_is_read_to_the_last_bit(tmp_path: Path, later: list[Row]) -> None:
    records = [record(step, rows) for step, rows in ((5, ROWS), (10, later), (15, ROWS))]
    run = run_of(tmp_path, *records)
    for found in (run.records(), RunDirectory(run.path).records()):
        assert json.dumps(found, sort_keys=True) == json.dumps(kept(*records), sort_keys=True)


def test_a_process_that_goes_on_with_a_run_keeps_what_its_lines_mean(tmp_path: Path) -> None:
    first = run_of(tmp_path, record(5, ROWS))
    again = RunDirectory(first.path)
    again.start(SPEC, CONTEXT, {})
    assert again.records() == kept(record(5, ROWS))
    again.append(record(10, ROWS[:2]))
    assert first.records() == kept(record(5, ROWS), record(10, ROWS[:2]))
    again.forget_records()
    again.append(record(5, ROWS[2:4]))
    assert again.records() == kept(record(5, ROWS[2:4]))


LINES = [
    {"step": -1},
    {"step": 2**31},
    {"step": True},
    {"step": 10, "accuracy/a/in": "0.5"},
    {"step": 10, "accuracy/a/in": [0.5]},
    {"step": 10, "accuracy/a/in": True},
    {"accuracy/a/in": 0.5},
    [10, 0.5],
]


@pytest.mark.parametrize("line", [*map(json.dumps, LINES), '{"step": 10', "\0" * 20])
def test_a_line_that_is_no_record_ends_the_records(tmp_path: Path, line: str) -> None:
    run = run_of(tmp_path, record(5, ROWS[:1]))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(f'{line}\n{{"step": 20, "accuracy/a/in": 0.5}}\n')
    assert run.records() == kept(record(5, ROWS[:1]))
    tables = read_results(Directory(tmp_path))
    assert tables.records["value"].tolist() == [581 / 720]
    assert tables.runs["last_step"].tolist() == [5]
    run.finish(State.DIVERGED, 20)
    assert run.state() is State.BROKEN and "1 up to step 5 instead" in run.state_and_reason()[1]


def test_costs_are_those_of_the_last_record_and_evaluations_add_up(tmp_path: Path) -> None:
    records = [record(step, ROWS[:1]) for step in (5, 10)]
    for number, each in enumerate(records, 1):
        each["cost"] = {name: float(number) for name in COSTS}
    run_of(tmp_path, *records)
    found = read_results(Directory(tmp_path)).runs[list(COSTS)].iloc[0].to_dict()
    assert found == {**dict.fromkeys(COSTS, 2.0), "evaluation_seconds": 3.0}
