"""The files of runs into one Arrow table, fast."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from oodbench.results import schemas
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.run_spec import State
from oodbench.results.schemas import DamagedFile, parse_json, read_bytes

CHUNK = 250
"""The number of runs that are parsed together."""

NAMES = ("environment", "split", "metric")
EVALUATION = pa.struct(
    [*((name, pa.string()) for name in NAMES), ("value", pa.float64()), ("count", pa.int64())]
)
COSTS = ("training_seconds", "waiting_seconds", "evaluation_seconds", "memory_mb")
RECORD = pa.schema(
    [
        ("step", pa.int64()),
        ("evaluations", pa.list_(EVALUATION)),
        ("cost", pa.struct([(name, pa.float64()) for name in COSTS])),
    ]
)
METRICS = pa.schema(
    [
        ("run", pa.int32()),
        ("step", pa.int32()),
        *((name, pa.dictionary(pa.int16(), pa.string())) for name in NAMES),
        ("value", pa.float64()),
        ("count", pa.int32()),
    ]
)
"""The columns of an evaluation; `run` is a run's place in a list."""


@dataclass
class ParsedRuns:
    """What was read of some runs."""

    runs: dict[str, dict[str, Any]]
    """Runs by id: `context`, `provenance`, `state`, `error`, `last_step`, COSTS, and for an ended run its
    `stamp`."""
    metrics: pa.Table
    """The evaluations, with the columns METRICS; `run` is the place in `runs`."""


def parse_runs(results: Results, ids: Sequence[str], stamps: Mapping[str, list[int]]) -> ParsedRuns:
    """What is in the runs' own files; `stamps` are those of the ended runs.

    A broken run has no records; one that has not ended has those before a torn or damaged line.
    """
    directories = [results.run(run_id) for run_id in ids]

    def part(start: int) -> tuple[dict[str, dict[str, Any]], pa.Table]:
        chunk = directories[start : start + CHUNK]
        infos = [_info(directory, stamps) for directory in chunk]
        broken = [info["state"] is State.BROKEN for info in infos]
        texts = [b"" if b else _text(d) for b, d in zip(broken, chunk, strict=True)]
        table, costs = _parse(texts, start)
        return {d.id: i | c for d, i, c in zip(chunk, infos, costs, strict=True)}, table

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # parsing in Arrow leaves Python free
        parts = list(pool.map(part, range(0, len(ids), CHUNK)))
    runs = {run_id: info for infos, _ in parts for run_id, info in infos.items()}
    return ParsedRuns(
        runs, pa.concat_tables([METRICS.empty_table(), *(table for _, table in parts)])
    )


def _info(directory: RunDirectory, stamps: Mapping[str, list[int]]) -> dict[str, Any]:
    """What `ParsedRuns` says of a run but for its costs."""
    state, reason = directory.state_and_reason()
    try:
        run = directory.info()
    except DamagedFile:
        run = None
    known = run is not None and run.spec.id == directory.id
    return {
        "context": run.context if run is not None and known else {},
        "provenance": run.provenance if run is not None and known else {},
        "state": state,
        "error": reason,
        "stamp": stamps.get(directory.id) if state.complete else None,
    }


def _text(directory: RunDirectory) -> bytes:
    """The lines of the run's metrics."""
    try:
        text = read_bytes(directory.path / "metrics.jsonl") or b""
    except (DamagedFile, OSError):
        return b""
    return text + b"\n" * (text[-1:] not in (b"", b"\n"))


def _parse(texts: Sequence[bytes], start: int) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The metrics of runs, `run` counted from `start`; and what each run cost."""
    lines = [text.count(b"\n") for text in texts]
    try:
        table = _arrow(b"".join(texts), sum(lines))
    except pa.ArrowException:  # a line is torn or damaged: Python tells where
        records = [_records_before_damage(text) for text in texts]
        lines = [len(of_run) for of_run in records]
        rows = [record for of_run in records for record in of_run]
        table = pa.Table.from_pylist(rows, schema=RECORD).combine_chunks()
    run = np.repeat(np.arange(start, start + len(texts), dtype=np.int32), lines)
    return _long(table, run), _costs(table, lines)


def _arrow(text: bytes, lines: int) -> pa.Table:
    """The records in `text`; raises ArrowInvalid unless every line is one."""
    if not text:
        return RECORD.empty_table()
    table = pyarrow.json.read_json(
        pa.BufferReader(text),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=RECORD, unexpected_field_behavior="ignore"
        ),
    ).combine_chunks()
    evaluations = pc.list_flatten(table["evaluations"])
    counts = pc.struct_field(evaluations, "count")
    holes = table["step"].null_count + table["evaluations"].null_count + counts.null_count
    holes += pc.struct_field(evaluations, "metric").null_count
    extremes = [pc.min_max(column).as_py() for column in (table["step"], counts)]
    if any(e["max"] is not None and (e["min"] < 0 or e["max"] >= 2**31) for e in extremes):
        raise pa.ArrowInvalid("a number is out of its range")
    if len(table) != lines or holes:
        raise pa.ArrowInvalid("not a record in every line")
    return table


def _records_before_damage(text: bytes) -> list[dict[str, Any]]:
    """The records in Python, up to the first line that is none."""
    found = []
    for line in text.splitlines():
        try:
            record = parse_json(line, schemas.RECORD, "")
        except DamagedFile:
            break
        cost = {name: record.get("cost", {}).get(name) for name in COSTS}
        found.append({**record, "cost": cost})
    return found


def _long(table: pa.Table, run: "np.ndarray[Any, np.dtype[np.int32]]") -> pa.Table:
    """One evaluation a row, of METRICS."""
    evaluations = table["evaluations"]
    sizes = pc.list_value_length(evaluations).to_numpy()
    flat = pc.list_flatten(evaluations)
    columns: dict[str, Any] = {
        "run": np.repeat(run, sizes),
        "step": np.repeat(table["step"].to_numpy().astype(np.int32), sizes),
        "value": pc.struct_field(flat, "value"),
        "count": pc.struct_field(flat, "count").cast(pa.int32()),
    }
    for name in NAMES:
        columns[name] = (
            pc.struct_field(flat, name).dictionary_encode().cast(METRICS.field(name).type)
        )
    return pa.table({name: columns[name] for name in METRICS.names}, schema=METRICS)


def _costs(table: pa.Table, lines: Sequence[int]) -> list[dict[str, Any]]:
    """Of each run: its last step, and COSTS; None if not recorded.

    Seconds of evaluation are of a record; the others' last values are of the whole run.
    """
    step = table["step"].to_pylist()
    recorded = {name: pc.struct_field(table["cost"], name).to_pylist() for name in COSTS}
    found: list[dict[str, Any]] = []
    end = 0
    for count in lines:
        begin, end = end, end + count
        known = {name: values[end - 1] if count else None for name, values in recorded.items()}
        spent = [s for s in recorded["evaluation_seconds"][begin:end] if s is not None]
        known["evaluation_seconds"] = sum(spent) if spent else None
        found.append({"last_step": step[end - 1] if count else None, **known})
    return found
