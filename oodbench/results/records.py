"""Records as lines of metrics.jsonl: flat objects, which pandas reads as a table.

    {"step": 20, "accuracy/0.2/in": 0.8069, "loss/0.2/in": 0.4455, "training_seconds": 1.2, ...}

Each key of a value is METRIC/ENVIRONMENT/SPLIT, METRIC for one of the predictor itself, or METRIC/train
for a mean over the steps since the record before. `columns` of run.json has what a key stands for, with the
number of examples behind its values; names may hold a `/`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from oodbench.results.run_spec import TRAIN
from oodbench.results.schemas import Count, File

Column = tuple[str | None, str | None, str, int]
"""The environment, split, metric and count of a value; the first two are None for the predictor's own."""
COSTS = ("training_seconds", "waiting_seconds", "evaluation_seconds", "memory_mb")


class Line(File):
    """A line of metrics.jsonl."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None]
    step: Count


LINE = TypeAdapter(Line)


class Columns:
    """The keys of a run's values and their meanings."""

    def __init__(self, by_key: Mapping[str, Column]) -> None:
        self.by_key = dict(by_key)
        self._keys = {column: key for key, column in by_key.items()}

    def _key(self, column: Column) -> str:
        if column not in self._keys:
            environment, split, metric, _ = column
            name = "/".join([metric, *filter(None, (environment, split))])
            key, number = name, 1
            while key in self.by_key or key in ("step", *COSTS):
                number += 1
                key = f"{name}#{number}"
            self._keys[column], self.by_key[key] = key, column
        return self._keys[column]

    def line(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The line of a record: its `step`, `train`, `cost` and `evaluations`; adds new keys."""
        values = {
            self._key((e["environment"], e["split"], e["metric"], e["count"])): e["value"]
            for e in record["evaluations"]
        }
        train = record.get("train", {})
        values |= {self._key((None, TRAIN, name, 1)): value for name, value in train.items()}
        return {"step": record["step"], **values, **record.get("cost", {})}

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


def whole_lines(text: bytes) -> list[dict[str, Any]]:
    """The lines of a file, up to a torn or damaged one."""
    lines = []
    with suppress(ValidationError):
        for bare in text.splitlines():
            line = LINE.validate_json(bare)
            lines.append({"step": line.step, **line.__pydantic_extra__})
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
