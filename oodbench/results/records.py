"""Records as lines of metrics.jsonl: flat objects, which pandas reads as a table.

    {"step": 20, "accuracy/0.2/in": 0.8069, "loss/0.2/in": 0.4455, "training_seconds": 1.2, ...}

Each key of a value is METRIC/ENVIRONMENT/SPLIT, METRIC for one of the predictor itself, or METRIC/train
for a mean over the steps since the record before. `columns` of run.json has what a key stands for, with the
number of examples behind its values; names may hold a `/`.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from oodbench.results.run_spec import TRAIN, State
from oodbench.results.schemas import DamagedFile, DoneFile, RunFile

Column = tuple[str | None, str | None, str, int]
"""The environment, split, metric and count of a value; the first two are None for the predictor's own."""
COSTS = ("training_seconds", "waiting_seconds", "evaluation_seconds", "memory_mb")
OWN = ("step", *COSTS)
"""The keys of a line that stand for no value."""
NUMBERS = (int, float, type(None))
EXACT = 2**53
"""The largest whole number up to which each is a float."""


@dataclass
class Columns:
    """The keys of a run's values and their meanings."""

    by_key: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._keys = {column: key for key, column in self.by_key.items()}

    @classmethod
    def of(cls, run: RunFile) -> "Columns":
        """The columns that run.json has."""
        return cls({key: (e, s, m, n) for key, (e, s, m, n) in run.columns.items()})

    def key(self, column: Column) -> str:
        """The key of a column, a new one if it has none yet."""
        if column not in self._keys:
            environment, split, metric, _ = column
            name = "/".join([metric, *filter(None, (environment, split))])
            key, number = name, 1
            while key in self.by_key or key in OWN:
                number += 1
                key = f"{name}#{number}"
            self._keys[column], self.by_key[key] = key, column
        return self._keys[column]

    def line(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The line of a record: its `step`, `train`, `cost` and `evaluations`."""
        train = {self.key((None, TRAIN, name, 1)): v for name, v in record.get("train", {}).items()}
        values = {
            self.key((e["environment"], e["split"], e["metric"], e["count"])): e["value"]
            for e in record["evaluations"]
        }
        return {"step": record["step"], **values, **train, **record.get("cost", {})}

    def record(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """The record of a line."""
        values = [(self.by_key[key], line[key]) for key in line if key in self.by_key]
        cost = {name: line[name] for name in COSTS if name in line}
        return {"step": line["step"], "cost": cost, **parted(values)}


def parted(values: Iterable[tuple[Column, float | None]]) -> dict[str, Any]:
    """The values of a step as a record has them: `evaluations`, and `train` by metric."""
    names = ("environment", "split", "metric", "count")
    known = list(values)
    evaluations = [dict(zip(names, c, strict=True), value=v) for c, v in known if c[1] != TRAIN]
    return {"train": {c[2]: v for c, v in known if c[1] == TRAIN}, "evaluations": evaluations}


def read_lines(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; raises DamagedFile at the first invalid one."""
    for number, bare in enumerate(text.splitlines(), 1):
        try:
            line = from_json(bare)
        except ValueError as error:
            raise DamagedFile(f"in line {number} is damaged: {error}") from None
        step = line.get("step") if isinstance(line, dict) else None
        if type(step) is not int or not 0 <= step < 2**31:
            raise DamagedFile(f"in line {number} is damaged: it has no step")
        for value in line.values():
            if type(value) not in NUMBERS or (type(value) is int and abs(value) > EXACT):
                raise DamagedFile(f"in line {number} is damaged: {str(value)[:40]} is no number")
        yield line


def whole_lines(text: bytes) -> list[dict[str, Any]]:
    """The lines of a file, up to a torn or damaged one."""
    lines: list[dict[str, Any]] = []
    with suppress(DamagedFile):
        lines.extend(read_lines(text))  # keeps those before the error
    return lines


def costs_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A run's last step and its COSTS; None for values that were not recorded.

    Seconds of evaluation are added up over the records; the other costs are those of the last record.
    """
    if not lines:
        return dict.fromkeys(("last_step", *COSTS))
    spent = [s for line in lines if (s := line.get("evaluation_seconds")) is not None]
    known = {name: lines[-1].get(name) for name in COSTS}
    known["evaluation_seconds"] = sum(spent) if spent else None
    return {"last_step": lines[-1]["step"], **known}


def wrong_records(text: bytes, run: RunFile, end: DoneFile) -> str:
    """What is wrong with the records of an ended run; empty if they are valid.

    The records must be those that done.json counts and hashes, at exactly the steps that are due; a
    diverged run has one more, at its end. Another program's results may have any steps.
    """
    if hashlib.sha256(text).hexdigest() != end.sha256:
        lines = len(text.splitlines())
        if end.records != lines:
            return f"has {lines} records; the run ended with {end.records}"
        return "is not what the run ended with"
    try:
        found = list(read_lines(text))
    except DamagedFile as error:
        return str(error)
    unknown = {key for line in found for key in line}.difference(OWN, run.columns)
    if unknown:
        return f"has {min(unknown)!r}, of which run.json says nothing"
    steps = [line["step"] for line in found]
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
