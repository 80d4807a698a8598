"""Schemas of the small files of a results directory, checked at every read.

Keys of a later version are left alone. A file of another schema number is refused.
"""

import zipfile
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict

from oodbench.errors import UserError
from oodbench.files import read_regular
from oodbench.identity import Digests
from oodbench.results.run_spec import RunSpec, State

SCHEMA = 2
LARGEST_FILE = 2**30
"""The most bytes of a file of a results directory that is read as a whole."""
LONGEST_REASON = 160
"""The most characters of a sentence on what is wrong in a file."""

UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(NotImplementedError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error),
)
"""The errors that numpy and Arrow raise for files that are torn or something else."""

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=2**31)]
OPEN = ConfigDict(extra="allow")


class DamagedFile(UserError):
    """A missing or damaged file, described in one sentence that names it."""


class File(BaseModel):
    """A JSON file, or a line of one."""

    model_config = ConfigDict(strict=True, frozen=True)


class Context(TypedDict):
    """Facts about a run that tables need beyond its spec."""

    __pydantic_config__ = OPEN  # type: ignore[misc]
    dataset_label: str
    training_environments: list[str]
    classes: NotRequired[list[str]]
    """The names of the classes in the order of their numbers; none if they have no names."""
    metric: str
    higher_is_better: bool
    family: NotRequired[str | None]
    shift: NotRequired[str | None]
    data_notes: NotRequired[list[str]]
    """What is unusual in how the data were read, and in what environments have."""
    read_as: NotRequired[dict[str, str]]
    """What each column of a table was read as, and why."""


class Provenance(TypedDict, total=False):
    """The code, libraries and machine that trained a run."""

    __pydantic_config__ = OPEN  # type: ignore[misc]
    oodbench: str
    commit: str | None
    torch: str
    vectorized: bool
    plugins: list[str]
    code: str
    """The code of results that another program made."""
    started: str
    digests: Digests


class RunFile(File):
    """run.json: the run's spec, and its provenance."""

    schema_: Literal[2] = Field(alias="schema")
    spec: RunSpec
    context: Context
    provenance: Provenance
    columns: dict[str, tuple[str | None, str | None, str, Count]] = Field(default={}, strict=False)
    """By the key of a value in metrics.jsonl: environment, split, metric, and its number of examples."""


class DoneFile(File):
    """done.json: how a run ended."""

    status: Literal[State.DONE, State.DIVERGED]
    step: Count
    seconds: float | None
    id: str
    """The run's id."""
    records: Count
    """The number of lines of metrics.jsonl."""
    sha256: str
    """The hash of the bytes of metrics.jsonl."""
    of_run: str
    """The hash of the bytes of run.json."""


class FailedFile(File):
    """failed.json: why a run failed."""

    error: str
    traceback: str


class Heartbeat(File):
    """heartbeat: which process has a run, and how far it is."""

    step: Count
    time: float
    """Seconds since 1970."""
    host: str
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    job: str | None = None
    """Slurm's id of the job, as `id` or `array_index`."""
    node: str | None = None


class ProcessHeartbeat(File):
    """heartbeats/<process>: the current step of each run that a process trains."""

    time: float
    """Seconds since 1970."""
    steps: dict[str, Count]
    """The steps by the runs' ids."""


class LaunchSettings(TypedDict, total=False):
    """Decisions of a launch for all runs of a sweep."""

    __pydantic_config__ = OPEN  # type: ignore[misc]
    sweep: dict[str, Any]
    data_dir: str | None
    plugins: list[str]
    keep_predictions: bool
    keep_weights: list[str]
    launcher: str
    resources: dict[str, Any]


class SweepFile(File):
    """sweep.json: the name of a sweep and the settings of its launches; plan.parquet has its runs."""

    schema_: Literal[2] = Field(alias="schema")
    name: str
    settings: LaunchSettings


def brief(error: Exception) -> str:
    """What a library says of a file, on one line."""
    return " ".join(str(error).split())[:LONGEST_REASON]


def read_file(path: Path, schema: type[T] | TypeAdapter[T]) -> T | None:
    """The content of a JSON file, or None if it is not there; raises DamagedFile."""
    data = read_bytes(path)
    return None if data is None else parse_json(data, schema, str(path))


def read_bytes(path: Path) -> bytes | None:
    """All bytes of a file, or None if there is none; raises DamagedFile if it cannot be read."""
    try:
        return read_regular(path, LARGEST_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UserError as error:
        raise DamagedFile(str(error)) from None
    except OSError as error:
        raise DamagedFile(f"{path}: {error.strerror}") from None


def parse_json(data: bytes, schema: type[T] | TypeAdapter[T], place: str) -> T:
    """The content of a JSON text; raises DamagedFile, which names the `place`."""
    adapter = schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)
    try:
        return adapter.validate_json(data, strict=True)
    except ValidationError as error:
        raise DamagedFile(f"{place} {_reason(data, error)}") from None


def _reason(data: bytes, error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if first["loc"] == ("schema",) and "schema" in (values := from_json(data)):
        return f"has schema {str(values['schema'])[:20]}, not {SCHEMA}: another version wrote it"
    key = ".".join(map(str, first["loc"]))
    text = f"is damaged: {key + ': ' if key else ''}{first['msg']}"
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 3]}..."
