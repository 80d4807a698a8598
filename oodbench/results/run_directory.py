"""The files of one run in a results directory."""

import hashlib
import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from errno import ENOENT
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from filelock import FileLock
from pydantic_core import from_json, to_json

from oodbench.files import write_whole
from oodbench.results.ended import Ended, ended
from oodbench.results.provenance import slurm_job
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.schemas import (
    CONTEXT,
    SCHEMA,
    Column,
    DamagedFile,
    DoneFile,
    FailedFile,
    Heartbeat,
    ProcessHeartbeat,
    Row,
    RunFile,
    costs_of,
    line_of,
    parse_json,
    read_bytes,
    read_file,
    records_in,
    rows_of,
    whole_lines,
)

WEIGHTS = ".safetensors"
LOST_AFTER = 120.0
"""Seconds without a heartbeat after which a run counts as lost."""


def dumps(value: Any) -> str:
    """JSON with null for infinities and NaN."""
    return to_json(value, inf_nan_mode="null", fallback=dict).decode()


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.results = path.parent.parent
        """The results directory."""
        self.checkpoint = path / "checkpoint.pt"
        self.stack = path / "stack.txt"
        """The stack traces of a process that `run_timeout` ended."""
        self.kept = self.results / "kept" / self.id
        """The folder of weights and predictions, which are kept after the run has ended."""
        self.weights = self.kept / "weights"

    def lock(self) -> FileLock:
        """The lock of the process that trains the run; the system releases it when the process dies."""
        self._make()
        return FileLock(self.path / "lock", blocking=False)

    def _make(self) -> None:
        if not self.results.exists():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(self.results))
        self.path.mkdir(parents=True, exist_ok=True)

    def start(
        self, spec: RunSpec, context: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        """Write run.json: the spec, the context for tables, and the provenance."""
        run = {"schema": SCHEMA, "spec": asdict(spec), "context": context}
        self._write_run(run | {"provenance": provenance})
        (self.path / "failed.json").unlink(missing_ok=True)

    def _write_run(self, run: Mapping[str, Any]) -> None:
        write_whole(self.path / "run.json", dumps({**run, "columns": self._columns}))

    def beat(self, step: int) -> None:
        """Record that this process trains the run from `step`, with Slurm's `job` and `node`.

        Later steps are in the heartbeat of the process, see `Directory.beat`.
        """
        beat = {"step": step, "time": time.time(), "host": platform.node(), "pid": os.getpid()}
        beat |= {"job": slurm_job(), "node": os.environ.get("SLURMD_NODENAME")}
        write_whole(self.path / "heartbeat", dumps(beat), durable=False)

    def rest(self) -> None:
        """Record that this process has stopped training the unfinished run."""
        (self.path / "heartbeat").unlink(missing_ok=True)

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record to metrics.jsonl."""
        known = len(self._columns)
        line = line_of(record, self._columns)
        if len(self._columns) > known:  # on the disk before the line that needs them
            self._write_run(from_json(self.read("run.json") or b"{}"))
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(dumps(line) + "\n")

    @cached_property
    def _columns(self) -> dict[str, Column]:
        with suppress(DamagedFile):
            if (run := read_file(self.path / "run.json", RunFile)) is not None:
                return dict(run.columns)
        return {}

    def sync_records(self) -> dict[str, Any]:
        """Flush the records to the disk; returns their number `records` and the `sha256` of their bytes."""
        with suppress(FileNotFoundError), (self.path / "metrics.jsonl").open("rb") as file:
            os.fsync(file.fileno())
            return _digest(file.readlines())
        return _digest([])

    def keep_records(self, records: int, sha256: str) -> bool:
        """Drop all but the first `records` records; a resumed run writes the others again.

        Returns False, and drops nothing, if the `sha256` differs from what `sync_records` returned.
        """
        path = self.path / "metrics.jsonl"
        lines = (read_bytes(path) or b"").splitlines(keepends=True)
        if _digest(lines[:records]) != {"records": records, "sha256": sha256}:
            return False
        if len(lines) > records:
            write_whole(path, b"".join(lines[:records]))
        return True

    def forget_records(self) -> None:
        """Drop all records and kept weights, for a run that starts again from its first step."""
        shutil.rmtree(self.kept, ignore_errors=True)
        self._columns = {}
        write_whole(self.path / "metrics.jsonl", "")

    def records(self) -> list[dict[str, Any]]:
        """The records in the order of their steps, before the first truncated or damaged line."""
        if self.is_in_tables:
            return self._ended.records_of(self.id)
        with suppress(DamagedFile):
            run, text = self.info(), self.read("metrics.jsonl")
            if run is not None:
                return records_in(rows_of(self.id, run.columns, whole_lines(text or b"")))
        return []

    @property
    def _ended(self) -> Ended:
        return ended(self.results)

    @property
    def is_in_tables(self) -> bool:
        """Whether the run has ended and was moved into the tables."""
        return self.id in self._ended

    def row(self) -> tuple[dict[str, Any], list[Row]]:
        """The columns ABOUT and the records of the run, from its folder alone.

        A broken run has no records; an unfinished one has those before the first truncated or damaged line.
        """
        state, reason = self.state_and_reason()
        context, made, lines, rows = dict[str, Any](), dict[str, Any](), [], list[Row]()
        with suppress(DamagedFile):
            if (run := self.info()) is not None and run.spec.id == self.id:
                context, made = dict(run.context), dict(run.provenance)
                text = b"" if state is State.BROKEN else self.read("metrics.jsonl")
                lines = whole_lines(text or b"")
                rows = rows_of(self.id, run.columns, lines)
        context.pop("dataset_label", None)
        error = reason if state.final else ""
        about: dict[str, Any] = {"state": state, "error": error, "records": len(rows)}
        about |= {name: context.pop(name, None) for name in CONTEXT} | costs_of(lines)
        about["training_environments"] = tuple(about["training_environments"] or ())
        return about | {"context": context, "provenance": made}, rows

    def finish(self, status: State, step: int) -> None:
        """Mark the run as `done` or `diverged` at `step`.

        done.json has the hashes of run.json and metrics.jsonl, so that damage is noticed.
        """
        end = {"status": status, "step": step, "sha256": self.sync_records()["sha256"]}
        end["of_run"] = _sha256(self.read("run.json") or b"")
        write_whole(self.path / "done.json", dumps(end))
        for name in ("heartbeat", "lock"):  # waiters look at done.json again
            (self.path / name).unlink(missing_ok=True)

    def fail(self, error: str, trace: str) -> None:
        """Mark the run as failed, with one sentence and the traceback."""
        self._make()  # its process may have died before it had the lock
        write_whole(self.path / "failed.json", dumps({"error": error, "traceback": trace}))
        self.rest()

    def take_stack(self) -> str:
        """Read and remove stack.txt; empty if it does not exist."""
        text = b""
        with suppress(DamagedFile):
            text = read_bytes(self.stack) or b""
            self.stack.unlink(missing_ok=True)
        return text.decode(errors="replace")

    def forget(self) -> None:
        """Remove the marks of how the run ended, so that it can be launched again."""
        (self.path / "failed.json").unlink(missing_ok=True)
        (self.path / "done.json").unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        """The content of one of the run's files, or None if it is not there; raises DamagedFile."""
        return read_bytes(self.path / name)

    def info(self) -> RunFile | None:
        """Spec, context and provenance, or None if the run never started; raises DamagedFile."""
        if self.is_in_tables:
            return self._ended.info(self.id)
        return read_file(self.path / "run.json", RunFile)

    def made_by(self) -> dict[str, Any]:
        """The provenance of the run; empty if it cannot be read."""
        with suppress(DamagedFile, OSError):
            if (run := self.info()) is not None:
                return dict(run.provenance)
        return {}

    def end(self) -> State | None:
        """How the run ended, or None if it has not ended or failed; raises DamagedFile."""
        if self.is_in_tables:
            return self._ended.states[self.id]
        end = read_file(self.path / "done.json", DoneFile)
        return None if end is None else end.status

    def failure(self) -> FailedFile | None:
        """The content of failed.json, or None; if the file is damaged, a failure that says so."""
        try:
            return read_file(self.path / "failed.json", FailedFile)
        except DamagedFile as error:
            return FailedFile(error=str(error), traceback="")

    def heartbeat(self) -> Heartbeat | None:
        """The last heartbeat, or None if it is missing or unreadable."""
        beat = None
        with suppress(DamagedFile):
            beat = read_file(self.path / "heartbeat", Heartbeat)
            if beat is not None:
                now = read_file(process_beat(self.results, beat.host, beat.pid), ProcessHeartbeat)
                if now is not None and self.id in now.steps and now.time > beat.time:
                    return beat.model_copy(update={"step": now.steps[self.id], "time": now.time})
        return beat

    def state(self) -> State:
        """The run's state by its files; queues are not asked."""
        return self.state_and_reason()[0]

    def state_and_reason(self) -> tuple[State, str]:
        """The run's state, and the reason why it failed or is broken, or where it runs."""
        found = self._folder_state()
        # checked last: compaction may have moved the run out of its folder meanwhile
        return (self._ended.states[self.id], "") if self.is_in_tables else found

    def _folder_state(self) -> tuple[State, str]:
        try:
            end = read_file(self.path / "done.json", DoneFile)
            if end is not None:
                reason = self._contradiction(end)
                return (State.BROKEN, reason) if reason else (end.status, "")
        except (DamagedFile, OSError) as error:
            return State.BROKEN, str(error)
        failure = self.failure()
        if failure is not None:
            return State.FAILED, failure.error
        beat = self.heartbeat()
        if beat is None:
            return State.LOST if (self.path / "run.json").exists() else State.PLANNED, ""
        if time.time() - beat.time > LOST_AFTER:
            return State.LOST, ""
        import psutil  # takes 20 ms

        is_alive = beat.host != platform.node() or psutil.pid_exists(beat.pid)
        return (State.RUNNING, beat.note) if is_alive else (State.LOST, "")

    def _contradiction(self, end: DoneFile) -> str:
        text, records = self.read("run.json"), self.read("metrics.jsonl") or b""
        if text is None:
            return f"{self.path / 'run.json'} is missing"
        run = parse_json(text, RunFile, str(self.path / "run.json"))
        if run.spec.id != self.id:
            return f"{self.path / 'run.json'} is of another run: {run.spec.id}"
        for name, content, wanted in (
            ("run.json", text, end.of_run),
            ("metrics.jsonl", records, end.sha256),
        ):
            if _sha256(content) != wanted:
                return f"{self.path / name} is not what the run ended with"
        if "code" in run.provenance:  # another program's results may have any steps
            return ""
        due = run.spec.due()
        if end.status is State.DIVERGED:
            due = sorted({*run.spec.due(end.step), end.step})
        steps = [line["step"] for line in whole_lines(records)]
        if steps == due:
            return ""
        return (
            f"{self.path / 'metrics.jsonl'} has records of other steps than planned: {len(steps)} up to "
            f"step {max(steps, default=0)} instead of {len(due)} up to step {due[-1]}"
        )


def process_beat(results: Path, host: str, pid: int) -> Path:
    """The file in which a process records the steps of the runs that it trains."""
    return results / "heartbeats" / f"{quote(host, safe='')}-{pid}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(lines: Sequence[bytes]) -> dict[str, Any]:
    return {"records": len(lines), "sha256": _sha256(b"".join(lines))}


def weights_path(run: RunDirectory, rule: str, step: int) -> Path:
    """The file of the weights that are kept for a rule at a step."""
    return run.weights / f"{quote(rule, safe='')}-{step}{WEIGHTS}"


def kept_weights(run: RunDirectory) -> dict[tuple[str, int], Path]:
    """The files of kept weights by rule and step.

    During training a rule may have two files, because a resumed run may need the earlier one.
    """
    files = {}
    for path in sorted(run.weights.glob(f"*{WEIGHTS}")):
        rule, _, step = path.stem.rpartition("-")
        if rule and step.isdecimal() and path.is_file() and not path.name.startswith("."):
            files[unquote(rule), int(step)] = path
    return files
