"""A results directory into data frames, fast: the files of runs become one Arrow table.

An ended run never changes again, so what was read of the ended runs is kept beside them, in
OUT/cache.arrow: a checksum and an Arrow file, written whole and renamed, that saves time and nothing
else. One that is damaged, foreign or older than a run's files is not used, and written anew.
"""

import gc
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from oodbench.files import read_regular, whole_file
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.records import Column, Record, whole_records
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.schemas import UNREADABLE, DamagedFile

FILES = ("done.json", "metrics.jsonl", "run.json")
"""The files of an ended run that never change again."""
CHUNK = 250
"""The number of runs that are parsed together."""

NAMES = ("environment", "split", "metric")
COSTS = ("training_seconds", "waiting_seconds", "evaluation_seconds", "memory_mb")
METRICS = pa.schema(
    [
        ("run", pa.int32()),
        ("step", pa.int32()),
        *((name, pa.dictionary(pa.int16(), pa.string())) for name in NAMES),
        ("value", pa.float64()),
        ("count", pa.int32()),
    ]
)
"""The columns of an evaluation; `run` is the run's index in `ParsedRuns.runs`."""
VERSION = 4
CHECKSUM = 8
"""The bytes of the cache's checksum, which come first."""
LARGEST_CACHE, LARGEST_RUN = 2**35, 2**16
"""The most bytes of a cache that is read, and of what it says of a run."""
KNOWN: Mapping[str, Any] = {
    **{"context": dict, "provenance": dict, "state": str, "error": str, "stamp": list},
    **dict.fromkeys(("last_step", *COSTS), float | int | None),
}
"""The columns that the cache keeps of a run beside its metrics, and their types."""
REWRITE = 0.01
"""A cache that lacks more than this share of the ended runs is written anew."""


@dataclass
class ParsedRuns:
    """The parsed contents of some runs."""

    runs: dict[str, dict[str, Any]]
    """Runs by id: `context`, `provenance`, `state`, `error`, `last_step`, COSTS, and for an ended run its
    `stamp`."""
    metrics: pa.Table
    """The evaluations, with the columns METRICS; `run` is the index in `runs`."""


def read_frames(
    results: Results, runs: Mapping[str, RunSpec] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the planned runs and their records; see `oodbench.results.tables`."""
    with _no_collection():
        if runs is not None:
            specs = {i: asdict(spec) for i, spec in runs.items()}
            return _frames(specs, parse_runs(results, list(specs), {}), {})
        stored = results.plan()
        plan: Mapping[str, Any] = stored["runs"]
        settings = stored["settings"]
        stamps = _stamps(results.path / "runs", plan)
        path = results.path / "cache.arrow"
        cached = _cached(path, stamps)
        fresh = parse_runs(results, [i for i in plan if i not in cached.runs], stamps)
        both = _merged(plan, cached, fresh)
        if len(stamps) - len(cached.runs) > REWRITE * len(stamps):
            _write_cache(path, both)
        return _frames(plan, both, settings)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector, which would search all objects again and again while many are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stamps(folder: Path, plan: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the stamp of every ended run: what the system says of its files."""
    stamps = {}
    for run_id in plan:
        with suppress(OSError):
            stats = [os.stat(f"{folder}/{run_id}/{name}") for name in FILES]  # noqa: PTH116 (fast)
            stamps[run_id] = [n for s in stats for n in (s.st_mtime_ns, s.st_size, s.st_ino)]
    return stamps


def _cached(path: Path, stamps: Mapping[str, list[int]]) -> ParsedRuns:
    """Return the cached contents of the ended runs with these stamps; empty if the cache cannot be read."""
    nothing = ParsedRuns({}, METRICS.empty_table())
    try:
        data = memoryview(read_regular(path, LARGEST_CACHE))
        if _checksum(data[CHECKSUM:]) != data[:CHECKSUM]:
            return nothing
        with pa.ipc.open_file(pa.py_buffer(data[CHECKSUM:])) as reader:
            packed = zlib.decompressobj().decompress
            about = json.loads(
                packed(reader.schema.metadata[b"oodbench"], LARGEST_RUN * len(stamps))
            )
            runs: dict[str, dict[str, Any]] = about["runs"]
            valid = [run["stamp"] == stamps.get(run_id) for run_id, run in runs.items()]
            if about["version"] != VERSION or not any(valid):
                return nothing  # somebody else's is not unpacked
            metrics = reader.read_all().replace_schema_metadata()
        if not metrics.schema.equals(METRICS) or not all(map(_is_whole, runs.values())):
            return nothing
        of_rows = metrics["run"].to_numpy()
        blocks = of_rows[np.diff(of_rows, prepend=-1) != 0]  # the rows of a run stand together
        if blocks.tolist() != [
            i for i, r in enumerate(runs.values()) if r["last_step"] is not None
        ]:
            return nothing
        known = {i: run for i, run in runs.items() if run["stamp"] == stamps.get(i)}
        return ParsedRuns(known, _only(metrics, np.flatnonzero(valid), len(runs)))
    except UNREADABLE:
        return nothing


def _is_whole(run: Mapping[str, Any]) -> bool:
    """Return whether the cache has all columns of an ended run."""
    typed = all(isinstance(run[name], kind) for name, kind in KNOWN.items())
    return typed and run.keys() == KNOWN.keys() and State(run["state"]).complete


def _only(metrics: pa.Table, kept: "np.ndarray[Any, Any]", runs: int) -> pa.Table:
    """Return the rows of the runs at the indices `kept`, renumbered in that order."""
    index = np.full(runs, -1, dtype=np.int32)
    index[kept] = np.arange(len(kept), dtype=np.int32)
    moved = index[metrics["run"].to_numpy()]
    table = metrics.set_column(0, METRICS.field("run"), pa.array(moved))
    return table if len(kept) == runs else table.filter(pa.array(moved >= 0))


def _merged(plan: Mapping[str, Any], cached: ParsedRuns, fresh: ParsedRuns) -> ParsedRuns:
    """Join cached and newly parsed runs, in the order of the plan."""
    if not fresh.runs and list(cached.runs) == list(plan):
        return cached
    shifted = fresh.metrics["run"].to_numpy() + np.int32(len(cached.runs))
    moved = fresh.metrics.set_column(0, METRICS.field("run"), pa.array(shifted))
    runs = cached.runs | fresh.runs
    index = {run_id: i for i, run_id in enumerate(runs)}
    both = pa.concat_tables([cached.metrics, moved]).unify_dictionaries()
    both = _only(both, np.array([index[run_id] for run_id in plan], dtype=np.int64), len(runs))
    codes = both["run"].to_numpy()
    if len(codes) and (np.diff(codes) < 0).any():
        both = both.take(pa.array(np.argsort(codes, kind="stable")))
    return ParsedRuns({run_id: runs[run_id] for run_id in plan}, both)


def _write_cache(path: Path, parsed: ParsedRuns) -> None:
    """Write the ended runs into the cache; a directory that cannot be written to has none."""
    ended = [i for i, run in enumerate(parsed.runs.values()) if run["stamp"] is not None]
    metrics = _only(parsed.metrics, np.array(ended, dtype=np.int64), len(parsed.runs))
    runs = {run_id: run for run_id, run in parsed.runs.items() if run["stamp"] is not None}
    about = zlib.compress(json.dumps({"version": VERSION, "runs": runs}).encode(), 1)
    table = metrics.combine_chunks().replace_schema_metadata({b"oodbench": about})
    content = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(content, table.schema, options=options) as writer:
        writer.write_table(table)
    data = memoryview(content.getvalue())
    with suppress(OSError), whole_file(path, durable=False) as file:
        file.write(_checksum(data))
        file.write(data)


def _checksum(data: memoryview) -> bytes:
    return f"{zlib.crc32(data):08x}".encode()


def _frames(
    plan: Mapping[str, Any], parsed: ParsedRuns, settings: Mapping[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    plugins = tuple(settings.get("plugins", ()))
    of_all = {"selection": settings.get("selection"), "plugins": plugins}
    if chosen := settings.get("sweep", {}).get("hparams_from"):
        of_all["hparams_from"] = chosen_once(chosen)
    rows = [
        {"id": run_id, **spec, "dataset_label": spec["dataset"], **info["context"]}
        | ({"dataset_label": label} if (label := spec.get("dataset_label")) else {})
        | {"state": info["state"], "provenance": info["provenance"], "error": info["error"]}
        | {name: info[name] for name in ("last_step", *COSTS)}
        | of_all
        for (run_id, spec), info in zip(plan.items(), parsed.runs.values(), strict=True)
    ]
    frame = pd.DataFrame(rows)
    for name in ("test_environments", "validation_environments", "training_environments"):
        if name in frame:
            frame[name] = [tuple(v) if isinstance(v, list | tuple) else () for v in frame[name]]
    metrics = parsed.metrics.to_pandas()
    run = metrics.pop("run").to_numpy()
    metrics.insert(0, "id", pd.Categorical.from_codes(run, pd.Index(list(plan))))
    return frame, metrics


def chosen_once(about: Mapping[str, Any]) -> str:
    """Return how an earlier sweep has chosen hyperparameters, see `oodbench.sweep.resolve`."""
    draws, trials = about["draws"], len(about["trials"])
    return (
        f"chosen once, by {about['rule']} in {about['results']}, among {draws} draw{'s' * (draws != 1)} "
        f"in {trials} other trial{'s' * (trials != 1)}"
    )


def parse_runs(results: Results, ids: Sequence[str], stamps: Mapping[str, list[int]]) -> ParsedRuns:
    """Read the runs' files; `stamps` are those of the ended runs.

    A broken run has no records; one that has not ended has those before a torn or damaged line.
    """
    directories = [results.run(run_id) for run_id in ids]

    def chunk_from(start: int) -> tuple[dict[str, dict[str, Any]], pa.Table]:
        chunk = directories[start : start + CHUNK]
        infos = [_info(directory, stamps) for directory in chunk]
        broken = [info["state"] is State.BROKEN for info in infos]
        texts = [b"" if b else _text(d) for b, d in zip(broken, chunk, strict=True)]
        table, costs = _parse(texts, start)
        return {d.id: i | c for d, i, c in zip(chunk, infos, costs, strict=True)}, table

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a disk may take long to find a file
        chunks = list(pool.map(chunk_from, range(0, len(ids), CHUNK)))
    runs = {run_id: info for infos, _ in chunks for run_id, info in infos.items()}
    return ParsedRuns(
        runs, pa.concat_tables([METRICS.empty_table(), *(table for _, table in chunks)])
    )


def _info(directory: RunDirectory, stamps: Mapping[str, list[int]]) -> dict[str, Any]:
    """Return the row of a run in `ParsedRuns`, without its costs."""
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
    """Return the lines of the run's metrics."""
    try:
        return directory.read("metrics.jsonl") or b""
    except DamagedFile:
        return b""


def _parse(texts: Sequence[bytes], start: int) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Return the metrics of runs, `run` counted from `start`; and what each run cost."""
    of_runs = [whole_records(text) for text in texts]
    records = [record for of_run in of_runs for record in of_run]
    sizes = [len(record.values) for record in records]
    runs = np.repeat(np.arange(start, start + len(texts)), [len(of_run) for of_run in of_runs])
    steps = np.array([record.line["step"] for record in records], dtype=np.int32)
    columns = {
        "run": np.repeat(runs.astype(np.int32), sizes),
        "step": np.repeat(steps, sizes),
        "value": np.array([*chain.from_iterable(r.values for r in records)], dtype=np.float64),
    }
    table = pa.table(columns | _names([r.layout.columns for r in records]), METRICS)
    return table, [_costs(of_run) for of_run in of_runs]


def _names(columns: Sequence[tuple[Column, ...]]) -> dict[str, Any]:
    """Return environment, split, metric and count of each value; the records of a run share `columns`."""
    distinct = {id(of_record): of_record for of_record in columns}
    flat = [column for of_record in distinct.values() for column in of_record]
    begins = dict(zip(distinct, accumulate(map(len, distinct.values()), initial=0), strict=False))
    ranges = [np.arange(begins[id(c)], begins[id(c)] + len(c)) for c in columns]
    indices = pa.array(np.concatenate([np.empty(0, dtype=np.int64), *ranges]))
    names = (*NAMES, "count")
    return {
        name: pa.array([column[i] for column in flat], METRICS.field(name).type).take(indices)
        for i, name in enumerate(names)
    }


def _costs(records: Sequence[Record]) -> dict[str, Any]:
    """Return a run's last step and its COSTS; None for what was not recorded.

    Seconds of evaluation are added up over the records; the other costs are those of the last record.
    """
    if not records:
        return dict.fromkeys(("last_step", *COSTS))
    costs = [record.line.get("cost", {}) for record in records]
    spent = [s for cost in costs if (s := cost.get("evaluation_seconds")) is not None]
    known = {name: costs[-1].get(name) for name in COSTS}
    known["evaluation_seconds"] = sum(spent) if spent else None
    return {"last_step": records[-1].line["step"], **known}
