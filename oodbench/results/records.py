"""Records as lines of metrics.jsonl.

The numbers of nearly all records of a run are of the same environments, splits and metrics. A line names
them, as `columns`, only where they differ from those of the line before:

    {"step":20,"columns":[{"metrics":["accuracy","loss"],"splits":[["0.2","in",[720,720]]]}],
     "counted":["accuracy"],"values":[581,0.4455]}
    {"step":40,"values":[640,0.3011]}

A `counted` metric is a proportion: its number is how many of the `count` examples are right, 581 of 720.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from oodbench.results.run_spec import State
from oodbench.results.schemas import OPEN, Count, DamagedFile, DoneFile, RunFile, parse_json

Column = tuple[str | None, str | None, str, int]
"""The environment, split, metric and count of a number; the first two are None for the predictor's own."""


class _Block(TypedDict):
    """The metrics that some splits have, and these splits with the count of each metric."""

    metrics: list[str]
    splits: list[tuple[str | None, str | None, list[Count]]]


class Cost(TypedDict, total=False):
    """The cost of a run up to a record."""

    __pydantic_config__ = OPEN  # type: ignore[misc]
    training_seconds: float | None
    waiting_seconds: float | None
    evaluation_seconds: float | None
    memory_mb: float | None


class _Line(TypedDict):
    __pydantic_config__ = OPEN  # type: ignore[misc]
    step: Count
    train: NotRequired[dict[str, Any]]
    cost: NotRequired[Cost]
    columns: NotRequired[list[_Block]]
    counted: NotRequired[list[str]]
    values: NotRequired[list[float | None]]


LINE = TypeAdapter(_Line)
STEP = re.compile(rb'^\{"step": ?(\d+),', re.MULTILINE)
"""The step of a record, at the beginning of its line."""


@dataclass(frozen=True)
class Layout:
    """The columns of a record's values, and which of them are written as counts."""

    columns: tuple[Column, ...]
    counted: frozenset[str] = frozenset()
    """The metrics whose numbers are how many of the examples are right."""


@dataclass(frozen=True)
class Record:
    """One evaluation of a run."""

    line: Mapping[str, Any]
    """The contents of the line."""
    layout: Layout
    values: Sequence[float | None]
    """The value of each column; None where it was not finite."""

    def as_dict(self) -> dict[str, Any]:
        """Return the record with `evaluations`, a mapping with all names for each value."""
        known = {k: v for k, v in self.line.items() if k not in ("columns", "counted", "values")}
        values = zip(self.layout.columns, self.values, strict=True)
        return known | {
            "evaluations": [
                {"environment": e, "split": s, "metric": m, "value": value, "count": count}
                for (e, s, m, count), value in values
            ]
        }


def read_records(text: bytes) -> Iterator[Record]:
    """Yield the records in the lines of a file; raises DamagedFile at the first line that is none."""
    layout = Layout(())
    for number, bare in enumerate(text.splitlines(), 1):
        place = f"in line {number}"
        line = parse_json(bare, LINE, place)
        if "columns" in line:
            layout = Layout(_flat(line["columns"], place), frozenset(line.get("counted", ())))
        yield Record(line, layout, _values(line, layout, place))


def _values(line: Mapping[str, Any], layout: Layout, place: str) -> Sequence[float | None]:
    """Return the values of a line; raises DamagedFile unless there is one for each column."""
    written: Sequence[float | None] = line.get("values", [])
    if len(written) != len(layout.columns) or "values" not in line:
        raise DamagedFile(f"{place} is damaged: not a value for each column")
    if not layout.counted:
        return written
    try:
        return [
            value / count if metric in layout.counted and value is not None else value
            for value, (_, _, metric, count) in zip(written, layout.columns, strict=True)
        ]
    except ZeroDivisionError:
        raise DamagedFile(f"{place} is damaged: a proportion of no examples") from None


def whole_records(text: bytes) -> list[Record]:
    """Return the records in the lines of a file, up to a torn or damaged line."""
    records = []
    with suppress(DamagedFile):
        for record in read_records(text):
            records.append(record)
    return records


def as_line(record: Mapping[str, Any], before: Layout | None) -> tuple[dict[str, Any], Layout]:
    """Convert a record with `evaluations` into a line; returns the line and its layout.

    `before` is the layout of the line before, if there is one. A metric that is no proportion at one
    record is not counted from then on.
    """
    evaluations = record["evaluations"]
    columns = _columns(evaluations)
    counted = {e["metric"] for e in evaluations}
    counted -= {e["metric"] for e in evaluations if not _is_share(e["value"], e["count"])}
    if before is not None and before.columns == columns:
        counted &= before.counted
    layout = Layout(columns, frozenset(counted))
    line = {key: value for key, value in record.items() if key != "evaluations"}
    if layout != before:
        line |= {"columns": _grouped(columns), "counted": sorted(counted)}
    line["values"] = [
        round(e["value"] * e["count"])
        if e["metric"] in counted and e["value"] is not None
        else e["value"]
        for e in evaluations
    ]
    return line, layout


def _is_share(value: float | None, count: int) -> bool:
    """Return whether dividing a number of examples by their count gives this value, to the last bit."""
    if value is None:
        return True
    return 0 <= value <= 1 and count > 0 and repr(round(value * count) / count) == repr(value)


def _columns(evaluations: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    return tuple((e["environment"], e["split"], e["metric"], e["count"]) for e in evaluations)


def _flat(blocks: Sequence[_Block], place: str) -> tuple[Column, ...]:
    try:
        columns = tuple(
            (environment, split, metric, count)
            for block in blocks
            for environment, split, counts in block["splits"]
            for metric, count in zip(block["metrics"], counts, strict=True)
        )
    except ValueError:
        raise DamagedFile(f"{place} is damaged: not a count for each metric") from None
    if len({column[:3] for column in columns}) < len(columns):
        raise DamagedFile(f"{place} is damaged: it has a column twice")
    return columns


def _grouped(columns: Sequence[Column]) -> list[_Block]:
    """Return the columns in blocks of neighbouring splits with the same metrics."""
    splits = [
        (environment, split, [(metric, count) for _, _, metric, count in group])
        for (environment, split), group in groupby(columns, key=lambda column: column[:2])
    ]
    return [
        {
            "metrics": list(metrics),
            "splits": [(e, s, [count for _, count in counts]) for e, s, counts in group],
        }
        for metrics, group in groupby(splits, key=lambda split: tuple(m for m, _ in split[2]))
    ]


def wrong_records(text: bytes, run: RunFile, end: DoneFile) -> str:
    """Return what is wrong with the records of a run that has ended; empty if nothing is.

    The records must be those that done.json counts and hashes, at exactly the steps that are due; a
    diverged run has one more, at its end. Another program's results may have any steps.
    """
    lines = text.splitlines()
    if end.records != len(lines):
        return f"has {len(lines)} records; the run ended with {end.records}"
    if hashlib.sha256(text).hexdigest() != end.sha256:
        return "is not what the run ended with"
    steps = [int(step) for step in STEP.findall(text)]
    if len(steps) != len(lines):
        try:
            steps = [record.line["step"] for record in read_records(text)]
        except DamagedFile as error:
            return str(error)
    if "code" in run.provenance:
        return ""
    due = run.spec.due()
    if end.status is State.DIVERGED:
        due = sorted({*run.spec.due(end.step), end.step})
    if steps == due:
        return ""
    twice = next((step for step in steps if steps.count(step) > 1), None)
    if twice is not None:
        return f"has two records of step {twice}"
    return f"has records of {len(steps)} steps and {len(due)} are due, the last at {due[-1]}"
