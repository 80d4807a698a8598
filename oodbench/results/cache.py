"""A results directory into data frames, fast.

An ended run never changes again, so what was read of the ended runs is kept beside them, in
OUT/cache.arrow: an Arrow file, written whole and renamed, that saves time and nothing else. One that
is torn, foreign or older than a run's own files is not used, and written anew.
"""

import gc
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from oodbench.files import whole_file
from oodbench.results.directory import Results
from oodbench.results.parse import COSTS, METRICS, ParsedRuns, parse_runs
from oodbench.results.run_spec import DIWA, RunSpec, State

VERSION = 3
NO_SEARCH: dict[str, Any] = {"search": "random"}
"""What the frames say of runs that no search has chosen."""
STAMPED = ("done.json", "metrics.jsonl", "run.json")
"""The files of an ended run that never change again."""
KNOWN = {"context", "provenance", "state", "error", "stamp", "last_step", *COSTS}
"""The columns that the cache keeps of a run beside its metrics."""
REWRITE = 0.01
"""The share of the ended runs above which a cache that lacks them is written anew."""


def read_frames(
    results: Results, runs: Mapping[str, RunSpec] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The planned runs and their records; see `oodbench.results.frames`."""
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
    """Without the garbage collector, which searches all objects again and again as many are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _stamps(folder: Path, plan: Mapping[str, Any]) -> dict[str, list[int]]:
    """The stamp of every ended run: what the system says of its STAMPED files."""
    found = {}
    for run_id in plan:
        try:
            stats = [os.stat(f"{folder}/{run_id}/{name}") for name in STAMPED]  # noqa: PTH116 (fast)
        except OSError:
            continue
        found[run_id] = [number for s in stats for number in (s.st_mtime_ns, s.st_size, s.st_ino)]
    return found


def _cached(path: Path, stamps: Mapping[str, list[int]]) -> ParsedRuns:
    """What the cache holds of the ended runs with these stamps; nothing if it cannot be read."""
    nothing = ParsedRuns({}, METRICS.empty_table())
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
            table = reader.read_all()
        about = json.loads(table.schema.metadata[b"oodbench"])
        metrics = table.replace_schema_metadata()
        runs: dict[str, dict[str, Any]] = about["runs"]
        if about["version"] != VERSION or not metrics.schema.equals(METRICS):
            return nothing
        if not all(run.keys() == KNOWN and State(run["state"]).complete for run in runs.values()):
            return nothing
        metrics.validate(full=True)
        valid = [run["stamp"] == stamps.get(run_id) for run_id, run in runs.items()]
        if not all(valid):
            kept = _only(metrics, np.flatnonzero(valid), len(runs))
            return ParsedRuns(
                {i: r for (i, r), v in zip(runs.items(), valid, strict=True) if v}, kept
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return nothing
    return ParsedRuns(runs, metrics)


def _only(metrics: pa.Table, kept: "np.ndarray[Any, Any]", runs: int) -> pa.Table:
    """The rows of the runs at the places `kept`, renumbered in that order."""
    place = np.full(runs, -1, dtype=np.int32)
    place[kept] = np.arange(len(kept), dtype=np.int32)
    moved = place[metrics["run"].to_numpy()]
    table = metrics.set_column(0, METRICS.field("run"), pa.array(moved))
    return table if len(kept) == runs else table.filter(pa.array(moved >= 0))


def _merged(plan: Mapping[str, Any], cached: ParsedRuns, fresh: ParsedRuns) -> ParsedRuns:
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
    return ParsedRuns({run_id: runs[run_id] for run_id in plan}, both)


def _write_cache(path: Path, found: ParsedRuns) -> None:
    """Write the ended runs into the cache; a directory that cannot be written to has none."""
    ended = [i for i, run in enumerate(found.runs.values()) if run["stamp"] is not None]
    metrics = _only(found.metrics, np.array(ended, dtype=np.int64), len(found.runs))
    runs = {run_id: run for run_id, run in found.runs.items() if run["stamp"] is not None}
    about = json.dumps({"version": VERSION, "runs": runs})
    table = metrics.combine_chunks().replace_schema_metadata({b"oodbench": about.encode()})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with suppress(OSError), whole_file(path, durable=False) as file:
        with pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)


def _frames(
    plan: Mapping[str, Any], found: ParsedRuns, settings: Mapping[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    search = settings.get("search")
    how = {"search": _search_label(search)} if search else NO_SEARCH
    of_all = {"selection": settings.get("selection")}
    rows = [
        {"id": run_id, **spec, **info["context"]}
        | {"dataset_label": spec.get("dataset_label") or info["context"].get("dataset_label")}
        | {"state": info["state"], "provenance": info["provenance"], "error": info["error"]}
        | {name: info[name] for name in ("last_step", *COSTS)}
        | (NO_SEARCH if (spec.get("average") or {}).get("name") == DIWA else how)
        | of_all
        for (run_id, spec), info in zip(plan.items(), found.runs.values(), strict=True)
    ]
    frame = pd.DataFrame(rows)
    for name in ("test_environments", "validation_environments", "training_environments"):
        if name in frame:
            frame[name] = [tuple(v) if isinstance(v, list | tuple) else () for v in frame[name]]
    metrics = found.metrics.to_pandas()
    run = metrics.pop("run").to_numpy()
    metrics.insert(0, "id", pd.Categorical.from_codes(run, pd.Index(list(plan))))
    return frame, metrics


def _search_label(search: Mapping[str, Any]) -> str:
    """How a search of version 0.2.0 chose the draws, for a footer."""
    text = f"{search['method'].upper()} by {search['objective']}, {search['runs']:,} runs a cell"
    return text + ("; it has seen the test environments" if search["objective"] == "oracle" else "")
