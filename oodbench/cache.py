"""A results directory into data frames, fast. Imports no torch.

An ended run never changes again, so what was read of the ended runs is kept beside them, in
OUT/cache.arrow: an Arrow file, written whole and renamed, that saves time and nothing else. One that
is torn, foreign or older than a run's own files is not used, and written anew.
"""

import gc
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from oodbench.errors import UserError
from oodbench.records import Frames, Results, RunDirectory, RunSpec

VERSION = 2
CHUNK = 250
"""Runs that are parsed together."""
REWRITE = 0.01
"""The cache is written anew when it lacks more than this share of the ended runs."""

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
"""`run` is a run's place in a list."""


@dataclass
class Read:
    """What was read of some runs."""

    runs: dict[str, dict[str, Any]]
    """By id: `context`, `provenance`, `state`, `error`, `last_step`, COSTS, and for an ended run its
    `stamp`."""
    metrics: pa.Table
    """Of METRICS, `run` being the place in `runs`."""


def load(results: Results, runs: Mapping[str, RunSpec] | None = None) -> Frames:
    """The planned runs and their records; see `Results.load`."""
    with _no_collection():
        if runs is not None:
            specs = {i: asdict(spec) for i, spec in runs.items()}
            return _frames(specs, _read(results, list(specs), {}), None)
        stored = results.plan()
        plan: Mapping[str, Any] = stored["runs"]
        search = stored["settings"].get("search")
        stamps = _stamps(results.path / "runs", plan)
        path = results.path / "cache.arrow"
        cached = _cached(path, stamps)
        fresh = _read(results, [i for i in plan if i not in cached.runs], stamps)
        read = _merged(plan, cached, fresh)
        if len(stamps) - len(cached.runs) > REWRITE * len(stamps):
            _keep(path, read)
        return _frames(plan, read, search)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector, which searches all objects again and again as many are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stamps(folder: Path, plan: Mapping[str, Any]) -> dict[str, list[int]]:
    """The stamp of every ended run: what the system says of its done.json and metrics.jsonl."""
    found = {}
    for run_id in plan:
        try:
            end = os.stat(f"{folder}/{run_id}/done.json")  # noqa: PTH116 (10,000 of them)
            metrics = os.stat(f"{folder}/{run_id}/metrics.jsonl")  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            continue
        found[run_id] = [end.st_mtime_ns, metrics.st_mtime_ns, metrics.st_size]
    return found


def _read(results: Results, ids: Sequence[str], stamps: Mapping[str, list[int]]) -> Read:
    """Read runs from their own files."""
    directories = [results.run(run_id) for run_id in ids]

    def part(start: int) -> tuple[dict[str, dict[str, Any]], pa.Table]:
        chunk = directories[start : start + CHUNK]
        table, costs = _parse(chunk, start)
        infos = (_info(directory, stamps) for directory in chunk)
        return {d.id: i | c for d, i, c in zip(chunk, infos, costs, strict=True)}, table

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # parsing in Arrow leaves Python free
        parts = list(pool.map(part, range(0, len(ids), CHUNK)))
    runs = {run_id: info for infos, _ in parts for run_id, info in infos.items()}
    return Read(runs, pa.concat_tables([METRICS.empty_table(), *(table for _, table in parts)]))


def _info(directory: RunDirectory, stamps: Mapping[str, list[int]]) -> dict[str, Any]:
    """What Read says of a run but for its costs."""
    info = directory.info() or {"context": {}, "provenance": {}}
    state = directory.state()
    failure = directory.failure() if state == "failed" else None
    return {
        "context": info["context"],
        "provenance": info["provenance"],
        "state": state,
        "error": str((failure or {}).get("error", "")),
        "stamp": stamps.get(directory.id) if state in ("done", "diverged") else None,
    }


def _parse(runs: Sequence[RunDirectory], start: int) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The metrics of runs, `run` counted from `start`; and what each run cost."""
    texts = [_bytes(run.path / "metrics.jsonl") for run in runs]
    lines = [text.count(b"\n") for text in texts]
    try:
        if any(text[-1:] not in (b"", b"\n") for text in texts):
            raise pa.ArrowInvalid("torn")
        table = _arrow(b"".join(texts), sum(lines))
    except pa.ArrowInvalid:  # a line is torn or foreign: Python tells where
        records = [_whole_records(run) for run in runs]
        lines = [len(of_run) for of_run in records]
        rows = [record for of_run in records for record in of_run]
        table = pa.Table.from_pylist(rows, schema=RECORD).combine_chunks()
    run = np.repeat(np.arange(start, start + len(runs), dtype=np.int32), lines)
    return _long(table, run), _costs(table, lines)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


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
    holes = table["step"].null_count + table["evaluations"].null_count
    holes += sum(pc.struct_field(evaluations, n).null_count for n in ("metric", "count"))
    if len(table) != lines or holes:
        raise pa.ArrowInvalid("not a record in every line")
    return table


def _whole_records(run: RunDirectory) -> list[dict[str, Any]]:
    """The run's records in Python; raises UserError for a line that is JSON but no record."""
    found = []
    for number, record in enumerate(run.records(), 1):
        try:
            keys = (*NAMES, "value", "count")
            evaluations = [{k: e[k] for k in keys} for e in record["evaluations"]]
            cost = {k: record.get("cost", {}).get(k) for k in COSTS}
            found.append({"step": record["step"], "evaluations": evaluations, "cost": cost})
        except (TypeError, KeyError, AttributeError):
            raise UserError(f"{run.path / 'metrics.jsonl'}: line {number} is no record") from None
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


def _cached(path: Path, stamps: Mapping[str, list[int]]) -> Read:
    """What the cache holds of the ended runs with these stamps; nothing if it cannot be read."""
    nothing = Read({}, METRICS.empty_table())
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
            table = reader.read_all()
        about = json.loads(table.schema.metadata[b"oodbench"])
        metrics = table.replace_schema_metadata()
        runs: dict[str, dict[str, Any]] = about["runs"]
        if about["version"] != VERSION or not metrics.schema.equals(METRICS):
            return nothing
        metrics.validate(full=True)
        valid = [run["stamp"] == stamps.get(run_id) for run_id, run in runs.items()]
        if not all(valid):
            kept = _only(metrics, np.flatnonzero(valid), len(runs))
            return Read({i: r for (i, r), v in zip(runs.items(), valid, strict=True) if v}, kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return nothing
    return Read(runs, metrics)


def _only(metrics: pa.Table, kept: "np.ndarray[Any, Any]", runs: int) -> pa.Table:
    """The rows of the runs at the places `kept`, renumbered in that order."""
    place = np.full(runs, -1, dtype=np.int32)
    place[kept] = np.arange(len(kept), dtype=np.int32)
    moved = place[metrics["run"].to_numpy()]
    table = metrics.set_column(0, METRICS.field("run"), pa.array(moved))
    return table if len(kept) == runs else table.filter(pa.array(moved >= 0))


def _merged(plan: Mapping[str, Any], cached: Read, fresh: Read) -> Read:
    """Both together, in the order of the plan."""
    if not fresh.runs and list(cached.runs) == list(plan):
        return cached
    shifted = fresh.metrics["run"].to_numpy() + np.int32(len(cached.runs))
    moved = fresh.metrics.set_column(0, METRICS.field("run"), pa.array(shifted))
    runs = cached.runs | fresh.runs
    place = {run_id: i for i, run_id in enumerate(runs)}
    both = pa.concat_tables([cached.metrics, moved]).unify_dictionaries()
    both = _only(both, np.array([place[run_id] for run_id in plan], dtype=np.int64), len(runs))
    codes = both["run"].to_numpy()
    if len(codes) and (np.diff(codes) < 0).any():
        both = both.take(pa.array(np.argsort(codes, kind="stable")))
    return Read({run_id: runs[run_id] for run_id in plan}, both)


def _keep(path: Path, read: Read) -> None:
    """Write the ended runs into the cache; a directory that cannot be written to has none."""
    ended = [i for i, run in enumerate(read.runs.values()) if run["stamp"] is not None]
    metrics = _only(read.metrics, np.array(ended, dtype=np.int64), len(read.runs))
    runs = {run_id: run for run_id, run in read.runs.items() if run["stamp"] is not None}
    about = json.dumps({"version": VERSION, "runs": runs})
    table = metrics.combine_chunks().replace_schema_metadata({b"oodbench": about.encode()})
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.OSFile(str(part), "wb") as file:
            with pa.ipc.new_file(file, table.schema, options=options) as writer:
                writer.write_table(table)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)


def _frames(plan: Mapping[str, Any], read: Read, search: Mapping[str, Any] | None) -> Frames:
    how = {"search": _told(search), "search_draws": search["draws"] if search else None}
    rows = [
        {"id": run_id, **spec, **info["context"]}
        | {"state": info["state"], "provenance": info["provenance"], "error": info["error"]}
        | {name: info[name] for name in ("last_step", *COSTS)}
        | how
        for (run_id, spec), info in zip(plan.items(), read.runs.values(), strict=True)
    ]
    frame = pd.DataFrame(rows)
    for name in ("test_environments", "validation_environments", "training_environments"):
        if name in frame:
            frame[name] = [tuple(v) if isinstance(v, list | tuple) else () for v in frame[name]]
    metrics = read.metrics.to_pandas()
    run = metrics.pop("run").to_numpy()
    metrics.insert(0, "id", pd.Categorical.from_codes(run, pd.Index(list(plan))))
    return Frames(frame, metrics)


def _told(search: Mapping[str, Any] | None) -> str:
    """How draws were chosen, for a footer."""
    if search is None:
        return "random"
    text = f"{search['method'].upper()} by {search['objective']}, {search['runs']:,} runs a cell"
    return text + ("; it has seen the test environments" if search["objective"] == "oracle" else "")
