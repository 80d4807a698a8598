"""The small files of a results directory, checked at every read, and records as lines of metrics.jsonl.

Unknown keys, such as those of a later version, are ignored; files with another schema number are
refused. The keys of a line are explained in `columns` of run.json, because names may contain a `/`. The
format is described in docs/guide/results_format.md.
"""

import time
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict

from oodbench.errors import UserError, brief
from oodbench.files import read_regular
from oodbench.identity import Digests
from oodbench.results.run_spec import TRAIN, RunSpec, State

SCHEMA = 2
LARGEST_FILE = 2**30
"""The largest file of a results directory that is read, in bytes."""

UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(NotImplementedError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error),
)
"""The errors that numpy and Arrow raise for truncated files and other formats."""

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=2**31)]


SPEC = TypeAdapter(RunSpec)
"""Reads a spec, and ignores unknown keys."""


class DamagedFile(UserError):
    """A missing or damaged file, described in one sentence that names it."""


class File(BaseModel):
    """A JSON file, or a line of one."""

    model_config = ConfigDict(strict=True, frozen=True, defer_build=True)


OPEN = ConfigDict(strict=True, extra="allow")
Constant = dict[str, dict[str, dict[str, float | None]]]
"""The metrics of the best constant prediction, by metric, environment and split."""


class Context(TypedDict, total=False):
    """What tables need to know about a run besides its spec; any key may be missing."""

    __pydantic_config__ = OPEN  # type: ignore[misc]

    dataset_label: str
    training_environments: list[str]
    metric: str
    higher_is_better: bool
    classes: list[str]
    """The names of the classes, by number."""
    family: str | None
    shift: str | None
    data_notes: list[str]
    """Warnings about how data were read."""
    read_as: dict[str, str]
    """How each column of a table was read."""
    constant: Constant | None


CONTEXT = ("training_environments", "metric", "higher_is_better", "constant")
"""The keys of a run's context that are columns of the table `runs`."""


class Provenance(TypedDict, total=False):
    """The keys of a run's provenance whose types matter, see `oodbench.results.provenance`."""

    __pydantic_config__ = OPEN  # type: ignore[misc]

    digests: Digests
    plugins: list[str]
    vectorized: bool
    """Whether the run was trained together with others."""


class RunFile(File):
    """run.json: the run's spec, its context for tables, and its provenance."""

    schema_: Literal[2] = Field(alias="schema")
    spec: RunSpec
    context: Context
    provenance: Provenance
    """Imported results of another program have `code`."""
    columns: dict[str, tuple[str | None, str | None, str, Count]] = Field(default={}, strict=False)
    """Environment, split, metric and number of examples of each key in metrics.jsonl."""


class DoneFile(File):
    """done.json: how a run ended."""

    status: Literal[State.DONE, State.DIVERGED]
    step: Count
    sha256: str
    """The hash of the bytes of metrics.jsonl."""
    of_run: str
    """The hash of the bytes of run.json."""


class FailedFile(File):
    """failed.json: why a run failed."""

    error: str
    traceback: str


class Heartbeat(File):
    """heartbeat: which process trains a run, and its step."""

    step: Count
    time: float
    """Seconds since 1970."""
    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    job: str | None = None
    """Slurm's id of the job, as `id` or `array_index`."""
    node: str | None = None

    @property
    def note(self) -> str:
        """The step, the machine and the age of the heartbeat in words."""
        age = time.time() - self.time
        return f"step {self.step} on {self.node or self.host}, heartbeat {age:.0f} s ago"


class ProcessHeartbeat(File):
    """heartbeats/<process>: the current step of each run that a process trains."""

    time: float
    """Seconds since 1970."""
    steps: dict[str, Count]
    """The steps by the runs' ids."""


class ChosenOnce(TypedDict):
    """How an earlier sweep chose the hyperparameters, see `oodbench.sweep.chosen`."""

    results: str
    rule: str
    draws: int
    trials: list[int]


class SharedKeys(TypedDict, total=False):
    """Keys of a sweep file in which all launches into a directory agree."""

    __pydantic_config__ = OPEN  # type: ignore[misc]

    draws: Literal["shared", "per trial"]
    shared_quantiles: bool
    hparams_from: ChosenOnce


class Settings(TypedDict, total=False):
    """Decisions of a launch for all runs, see `oodbench.sweep.launch.store_plan`."""

    __pydantic_config__ = OPEN  # type: ignore[misc]

    sweep: SharedKeys
    selection: str | None
    protocol: str | None
    data_dir: str | None
    plugins: list[str]
    launcher: str


class SweepFile(File):
    """sweep.json: the name of a sweep and the settings of its launches; plan.parquet has its runs."""

    schema_: Literal[2] = Field(alias="schema")
    name: str
    settings: Settings


def read_file(path: Path, schema: type[T] | TypeAdapter[T]) -> T | None:
    """The content of a JSON file, or None if it is not there; raises DamagedFile."""
    data = read_bytes(path)
    return None if data is None else parse_json(data, schema, str(path))


def read_bytes(path: Path) -> bytes | None:
    """All bytes of a file, or None if it does not exist; raises DamagedFile if it cannot be read."""
    try:
        return read_regular(path, LARGEST_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UserError as error:
        raise DamagedFile(str(error)) from None
    except OSError as error:
        raise DamagedFile(f"{path}: {error.strerror}") from None


def parse_json(data: bytes | str, schema: type[T] | TypeAdapter[T], place: str) -> T:
    """The content of a JSON text; raises DamagedFile, which names the `place`."""
    adapter = schema if isinstance(schema, TypeAdapter) else _adapter(cast(Any, schema))
    try:
        return cast(T, adapter.validate_json(data, strict=True))
    except ValidationError as error:
        raise DamagedFile(f"{place} {_reason(data, error)}") from None


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)  # made once, as it takes milliseconds


def _reason(data: bytes | str, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if first["loc"] == ("schema",) and "schema" in (values := from_json(data)):
        return f"has schema {str(values['schema'])[:20]}, not {SCHEMA}: another version wrote it"
    key = ".".join(map(str, first["loc"]))
    return brief(f"is damaged: {key + ': ' if key else ''}{first['msg']}")


Column = tuple[str | None, str | None, str, int]
"""Environment, split, metric and count of a value; metrics of the predictor itself have neither environment
nor split."""
Row = tuple[str, int, str | None, str | None, str, float | None, int]
"""A recorded value, in the order of `oodbench.results.parquet.RECORDS`."""
COSTS = ("training_seconds", "waiting_seconds", "evaluation_seconds", "memory_mb")


class Line(File):
    """A line of metrics.jsonl."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None]
    step: Count


def line_of(record: Mapping[str, Any], columns: dict[str, Column]) -> dict[str, Any]:
    """Convert a record (`step`, `train`, `cost`, `evaluations`) into a line; adds new keys to `columns`."""
    keys = {column: key for key, column in columns.items()}
    values: dict[Column, Any] = {
        (e["environment"], e["split"], e["metric"], e["count"]): e["value"]
        for e in record["evaluations"]
    }
    values |= {(None, TRAIN, name, 1): value for name, value in record.get("train", {}).items()}
    for environment, split, metric, count in [column for column in values if column not in keys]:
        key = name = "/".join([metric, *filter(None, (environment, split))])
        number = 1
        while key in columns or key in ("step", *COSTS):
            number += 1
            key = f"{name}#{number}"
        columns[key] = environment, split, metric, count
        keys[columns[key]] = key
    named = {keys[column]: value for column, value in values.items()}
    return {"step": record["step"], **named, **record.get("cost", {})}


def rows_of(
    run_id: str, columns: Mapping[str, Column], lines: Iterable[Mapping[str, Any]]
) -> list[Row]:
    """Convert a run's lines into rows of the table `records`."""
    return [
        (run_id, line["step"], *columns[key][:3], value, columns[key][3])
        for line in lines
        for key, value in line.items()
        if key in columns
    ]


def records_in(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Collect rows of a run into records, each with `step`, `evaluations`, and `train` by metric."""
    names = ("environment", "split", "metric", "value", "count")
    records: dict[int, dict[str, Any]] = {}
    for _, step, *values in rows:
        record = records.setdefault(step, {"step": step, "train": {}, "evaluations": []})
        evaluation = dict(zip(names, values, strict=True))
        if evaluation["split"] == TRAIN:
            record["train"][evaluation["metric"]] = evaluation["value"]
        else:
            record["evaluations"].append(evaluation)
    return list(records.values())


def whole_lines(text: bytes) -> list[dict[str, Any]]:
    """The lines of a file before the first truncated or damaged one."""
    lines = []
    with suppress(ValidationError):
        for bare in text.splitlines():
            line = Line.model_validate_json(bare)
            lines.append({"step": line.step, **line.__pydantic_extra__})
    return lines


def costs_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A run's last step and its COSTS; None for values that were not recorded.

    Seconds of evaluation are summed over the records; the other costs are those of the last record.
    """
    if not lines:
        return dict.fromkeys(("last_step", *COSTS))
    spent = [s for line in lines if (s := line.get("evaluation_seconds")) is not None]
    known = {name: lines[-1].get(name) for name in COSTS}
    known["evaluation_seconds"] = sum(spent) if spent else None
    return {"last_step": lines[-1]["step"], **known}
