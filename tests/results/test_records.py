"""Lines of metrics.jsonl: what is read is what was written, to the last bit."""

import json
from typing import Any

import pytest

from oodbench.results.directory import RunDirectory
from oodbench.results.records import Layout, as_line, read_records, whole_records
from oodbench.results.schemas import DamagedFile

Row = tuple[str | None, str | None, str, float | None, int]
FULL: list[Row] = [
    ("a", "in", "accuracy", 581 / 720, 720),
    ("a", "in", "loss", 0.1 + 0.2, 720),
    ("a", "out", "accuracy", 1.0, 3),
    ("a", "out", "loss", None, 3),
    ("b", "in", "accuracy", 2 / 3, 3),
    (None, None, "own", -0.0, 1),
]


def record(step: int, rows: list[Row]) -> dict[str, Any]:
    keys = ("environment", "split", "metric", "value", "count")
    evaluations = [dict(zip(keys, row, strict=True)) for row in rows]
    return {"step": step, "train": {"x": 1.5}, "cost": {}, "evaluations": evaluations}


def lines(*records: dict[str, Any]) -> list[dict[str, Any]]:
    layout, written = None, []
    for each in records:
        line, layout = as_line(each, layout)
        written.append(line)
    return written


def read(*written: dict[str, Any]) -> list[dict[str, Any]]:
    text = "\n".join(json.dumps(line) for line in written)
    return [each.as_dict() for each in read_records(text.encode())]


def changed(value: float | None, place: int = 0) -> list[Row]:
    rows = list(FULL)
    rows[place] = (*rows[place][:3], value, rows[place][4])
    return rows


@pytest.mark.parametrize(
    "later",
    [
        FULL,
        changed(0.3001),  # no proportion of 720 any more
        changed(None),
        changed(1e300, 1),
        changed(-1.0, 1),
        changed(5e-324, 1),
        FULL[:3],
        FULL[::-1],
        [],
    ],
)
def test_what_was_written_is_read_to_the_last_bit(later: list[Row]) -> None:
    records = [record(step, rows) for step, rows in ((5, FULL), (10, later), (15, FULL))]
    assert repr(read(*lines(*records))) == repr(records)


def test_names_stand_in_the_first_line_alone_and_proportions_are_counts() -> None:
    first, second = lines(record(5, FULL), record(10, FULL))
    assert first["values"] == second["values"] == [581, 0.1 + 0.2, 3, None, 2, -0.0]
    assert first["counted"] == ["accuracy"] and len(first["columns"]) == 3
    assert second.keys() == {"step", "train", "cost", "values"}


def test_a_metric_that_is_no_proportion_once_is_not_counted_again() -> None:
    records = (record(5, FULL), record(10, changed(0.3001)), record(15, FULL), record(20, FULL))
    assert ["columns" in line for line in lines(*records)] == [True, True, False, False]


@pytest.mark.parametrize(
    "line",
    [
        {"step": 10},
        {"step": 10, "values": [0.5]},
        {"step": 10, "values": [0.5] * 7},
        {"step": 10, "columns": [{"metrics": ["m", "n"], "splits": [["a", "in", [8]]]}], "values": [1]},
        {"step": 10, "columns": [{"metrics": ["m"], "splits": [["a", "in", [-8]]]}], "values": [1]},
        {"step": 10, "columns": [{"metrics": ["m"], "splits": [["a", "in"]]}], "values": [1]},
        {"step": 10, "columns": [{"metrics": ["m", "m"], "splits": [["a", "in", [8, 8]]]}],
         "values": [1, 1]},
        {"step": 10, "columns": [{"metrics": ["m"], "splits": [["a", "in", [0]]]}], "counted": ["m"],
         "values": [1]},
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_ends_the_records(line: dict[str, Any]) -> None:
    text = "\n".join(json.dumps(each) for each in (*lines(record(5, FULL)), line, line)).encode()
    assert [r.line["step"] for r in whole_records(text)] == [5]
    with pytest.raises(DamagedFile, match="in line 2"):
        list(read_records(text))


def test_whoever_goes_on_with_a_file_repeats_no_names(tmp_path: Any) -> None:
    for step in (5, 10):
        RunDirectory(tmp_path).append(record(step, FULL))
    first, second = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert "columns" in first and "columns" not in second
    assert RunDirectory(tmp_path).records() == [record(5, FULL), record(10, FULL)]
    RunDirectory(tmp_path).forget_records()
    RunDirectory(tmp_path).append(record(5, FULL))
    assert (tmp_path / "metrics.jsonl").read_text() == first + "\n"


def test_the_layout_of_no_columns_is_read_back() -> None:
    assert as_line(record(5, []), Layout(()))[0]["values"] == []
