"""Results on disk: the only reader and writer of a results directory.

OUT/sweep.json           the name of the sweep and the settings of its launches
OUT/plan.parquet         its planned runs, see `oodbench.results.parquet`
OUT/audit.json           the findings on its data, lists of `oodbench.notes.Finding` by dataset label
OUT/sweep.lock           held by a process that adds runs to them
OUT/heartbeats/<process> the steps of the runs that a process trains, rewritten while it does
OUT/data/<digest>.json   the files that runs read, see `oodbench.results.data_files`
OUT/data/<label>.parquet a data frame that a script brought
OUT/plugins/             classes that a script or a notebook defines, as modules
OUT/ended/               the runs that have ended, in two tables, see `oodbench.results.ended`
OUT/kept/<id>/weights/   RULE-STEP.safetensors: the weights of the step that a rule would choose
              predictions/  see `oodbench.results.predictions`
OUT/runs/<id>/           a run while it trains, or that failed:
              run.json          the run's spec and the provenance of its last start
              metrics.jsonl     one record an evaluation
              checkpoint.pt     what a resumed run needs
              heartbeat         who trains it
              stack.txt         where a process was that ran out of time, until failed.json says so
              lock              held by the process that trains it
              done.json | failed.json   how it ended; written whole and renamed
"""

import hashlib
import os
import platform
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from errno import ENOENT
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from filelock import FileLock, Timeout
from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from oodbench.errors import UserError
from oodbench.files import is_temporary, whole_file, write_whole
from oodbench.notes import Finding
from oodbench.results.ended import Ended, ended
from oodbench.results.provenance import slurm_job
from oodbench.results.records import Columns, whole_lines, wrong_records
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.schemas import (
    SCHEMA,
    DamagedFile,
    DoneFile,
    FailedFile,
    Heartbeat,
    ProcessHeartbeat,
    Provenance,
    RunFile,
    SweepFile,
    parse_json,
    read_bytes,
    read_file,
)

if TYPE_CHECKING:
    import pandas as pd

PLACE = ["dataset_label", "label", "test_environments", "draw", "trial"]
"""The columns of a plan by which a run of a row is found."""
FINDINGS = TypeAdapter(dict[str, list[dict[str, Any]]])
LAST = "last"
"""The name of the weights of a run's last step, where else a selection rule stands."""
WEIGHTS = ".safetensors"
LOST_AFTER = 120.0
"""Seconds without a heartbeat after which a run that another machine trained counts as lost."""


def _dumps(value: Any) -> str:
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
        """Where a process that ran out of time left the stacks of its threads."""
        self.kept = self.results / "kept" / self.id
        """The folder of weights and predictions, which stay when the run has ended."""
        self.weights = self.kept / "weights"
        self._info: RunFile | None = None
        self._written: str | None = None
        self._columns: Columns | None = None

    def lock(self) -> FileLock:
        """The lock that the process that trains the run holds; the system drops it when the holder dies."""
        self._make()
        return FileLock(self.path / "lock", blocking=False)

    def _make(self) -> None:
        if not self.results.exists():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(self.results))
        self.path.mkdir(parents=True, exist_ok=True)

    def start(
        self, spec: RunSpec, context: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        """Record the spec, what tables need to know of dataset and task, and where it runs."""
        run = {"schema": SCHEMA, "spec": asdict(spec), "context": context}
        self._write_run(run | {"provenance": provenance}, self._known_columns())
        (self.path / "failed.json").unlink(missing_ok=True)

    def _write_run(self, run: Mapping[str, Any], columns: Columns) -> None:
        self._written, self._info = _dumps({**run, "columns": columns.by_key}), None
        write_whole(self.path / "run.json", self._written)

    def beat(self, step: int) -> None:
        """Say that this process has the run at `step`; `job` and `node` are Slurm's.

        Its further steps are in the heartbeat of the process, see `Directory.beat`.
        """
        beat = {"step": step, "time": time.time(), "host": platform.node(), "pid": os.getpid()}
        beat |= {"job": slurm_job(), "node": os.environ.get("SLURMD_NODENAME")}
        write_whole(self.path / "heartbeat", _dumps(beat), durable=False)

    def rest(self) -> None:
        """Record that no process trains the unfinished run any more."""
        (self.path / "heartbeat").unlink(missing_ok=True)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record, with its values in `evaluations` and `train`, to the metrics."""
        columns = self._known_columns()
        known = len(columns.by_key)
        line = columns.line(record)
        if len(columns.by_key) > known:  # on the disk before the line that needs them
            written = self._written or self.read("run.json") or b"{}"
            self._write_run(from_json(written), columns)
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(_dumps(line) + "\n")

    def _known_columns(self) -> Columns:
        if self._columns is None:
            run = None
            with suppress(DamagedFile):
                run = self._folder_info()
            self._columns = Columns() if run is None else Columns.of(run)
        return self._columns

    def sync_records(self) -> dict[str, Any]:
        """Put the records on the disk; returns their number `records` and the `sha256` of their bytes."""
        with suppress(FileNotFoundError), (self.path / "metrics.jsonl").open("rb") as file:
            os.fsync(file.fileno())
            return _digest(file.readlines())
        return _digest([])

    def keep_records(self, records: int, sha256: str) -> bool:
        """Keep the first `records` records and drop the others, which a resumed run writes again.

        Returns False and drops nothing if their `sha256` differs from what `sync_records` returned.
        """
        path = self.path / "metrics.jsonl"
        lines = (read_bytes(path) or b"").splitlines(keepends=True)
        if _digest(lines[:records]) != {"records": records, "sha256": sha256}:
            return False
        if len(lines) > records:
            with whole_file(path) as file:
                file.writelines(lines[:records])
        return True

    def forget_records(self) -> None:
        """Drop all records and the weights kept with them, for a run that starts from its first step."""
        shutil.rmtree(self.kept, ignore_errors=True)
        self._columns = Columns()
        write_whole(self.path / "metrics.jsonl", "")

    def records(self) -> list[dict[str, Any]]:
        """The records in the order of their steps, up to a torn or damaged line."""
        if self.is_in_tables:
            return self._ended.records_of(self.id)
        with suppress(DamagedFile):
            run, text = self.info(), self.read("metrics.jsonl")
            if run is not None:
                return list(map(Columns.of(run).record, whole_lines(text or b"")))
        return []

    @property
    def _ended(self) -> Ended:
        return ended(self.results)

    @property
    def is_in_tables(self) -> bool:
        """Whether the run has ended and was moved into the tables."""
        return self.id in self._ended

    def finish(self, status: State, step: int, seconds: float) -> None:
        """Mark the run as `done` or `diverged` at `step`.

        done.json has the run's id and hashes of run.json and metrics.jsonl, so that damage is noticed.
        """
        written = self._written or (self.read("run.json") or b"").decode()
        end = {"id": self.id, "status": status, "step": step, "seconds": seconds}
        end |= self.sync_records() | {"of_run": _sha256(written.encode())}
        write_whole(self.path / "done.json", _dumps(end))
        for name in ("heartbeat", "lock"):  # waiters look at done.json again
            (self.path / name).unlink(missing_ok=True)

    def fail(self, error: str, trace: str) -> None:
        """Mark the run as failed: one sentence and the traceback."""
        self._make()  # its process may have died before it had the lock
        write_whole(self.path / "failed.json", _dumps({"error": error, "traceback": trace}))
        self.rest()

    def take_stack(self) -> str:
        """Read and remove stack.txt, which is written at the timeout; empty if it is not there."""
        text = b""
        with suppress(DamagedFile):
            text = read_bytes(self.stack) or b""
            self.stack.unlink(missing_ok=True)
        return text.decode(errors="replace")

    def forget(self) -> None:
        """Forget how the run ended, so that it can be launched again."""
        (self.path / "failed.json").unlink(missing_ok=True)
        (self.path / "done.json").unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        """The content of one of the run's files, or None if it is not there; raises DamagedFile."""
        return read_bytes(self.path / name)

    def info(self) -> RunFile | None:
        """Spec, context and provenance, or None if the run has not started; raises DamagedFile."""
        return self._ended.info(self.id) if self.is_in_tables else self._folder_info()

    def _folder_info(self) -> RunFile | None:
        self._info = read_file(self.path / "run.json", RunFile)
        return self._info

    def made_by(self) -> Provenance:
        """The provenance of the run, empty where none can be read."""
        with suppress(DamagedFile, OSError):
            run = self._info or self.info()
            return Provenance() if run is None else run.provenance
        return Provenance()

    def end(self) -> State | None:
        """How the run ended, or None if it has not ended well; raises DamagedFile."""
        if self.is_in_tables:
            return self._ended.states[self.id]
        end = read_file(self.path / "done.json", DoneFile)
        return None if end is None else end.status

    def failure(self) -> FailedFile | None:
        """The content of failed.json, or None; for a damaged file, a failure that says so."""
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
                now = read_file(_process_beat(self.results, beat.host, beat.pid), ProcessHeartbeat)
                if now is not None and self.id in now.steps and now.time > beat.time:
                    return beat.model_copy(update={"step": now.steps[self.id], "time": now.time})
        return beat

    def state(self) -> State:
        """The run's state by the disk alone, which knows nothing of queues."""
        return self.state_and_reason()[0]

    def state_and_reason(self) -> tuple[State, str]:
        """The run's state, and the reason why it failed or is broken."""
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
        return State.RUNNING if _alive(beat) else State.LOST, ""

    def _contradiction(self, end: DoneFile) -> str:
        """How a run's other files contradict done.json; empty if they agree."""
        place = str(self.path / "run.json")
        text = self.read("run.json")
        if text is None:
            return f"{place} is missing"
        self._info = run = parse_json(text, RunFile, place)
        for name, run_id in (("run.json", run.spec.id), ("done.json", end.id)):
            if run_id != self.id:
                return f"{self.path / name} is of another run: {run_id[:20]}"
        if _sha256(text) != end.of_run:
            return f"{place} is not what the run ended with"
        reason = wrong_records(self.read("metrics.jsonl") or b"", run, end)
        return f"{self.path / 'metrics.jsonl'} {reason}" if reason else ""


def _process_beat(results: Path, host: str, pid: int) -> Path:
    return results / "heartbeats" / f"{quote(host, safe='')}-{pid}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(lines: Sequence[bytes]) -> dict[str, Any]:
    return {"records": len(lines), "sha256": _sha256(b"".join(lines))}


def _alive(beat: Heartbeat) -> bool:
    if time.time() - beat.time > LOST_AFTER:
        return False
    with suppress(PermissionError):
        try:
            if beat.host == platform.node():
                os.kill(beat.pid, 0)
        except ProcessLookupError:
            return False
    return True


def weights_path(run: RunDirectory, rule: str, step: int) -> Path:
    """Where the weights of a step are kept for a rule."""
    return run.weights / f"{quote(rule, safe='')}-{step}{WEIGHTS}"


def kept_weights(run: RunDirectory) -> dict[tuple[str, int], Path]:
    """The files of kept weights by rule and step.

    While a run is trained a rule may have two, as a resumed run may need the former one.
    """
    files = {}
    for path in sorted(run.weights.glob(f"*{WEIGHTS}")):
        rule, _, step = path.stem.rpartition("-")
        if rule and step.isdecimal() and path.is_file() and not path.name.startswith("."):
            files[unquote(rule), int(step)] = path
    return files


class Directory:
    """A results directory: the planned runs and their files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, run_id: str) -> RunDirectory:
        """The directory of a run; what follows an `@` in an id tells its rows apart."""
        return RunDirectory(self.path / "runs" / run_id.partition("@")[0])

    def with_kept(self, ids: Iterable[str]) -> list[str]:
        """The ids among these of runs with a folder of kept weights or predictions."""
        kept = self.path / "kept"
        there = {path.name for path in kept.iterdir()} if kept.is_dir() else set[str]()
        return [run_id for run_id in ids if run_id in there]

    def beat(self, steps: Mapping[str, int]) -> None:
        """Write the steps of the runs, by id, that this process trains; remove the file without any."""
        path = _process_beat(self.path, platform.node(), os.getpid())
        if steps:
            path.parent.mkdir(exist_ok=True)
            beat = {"time": time.time(), "steps": dict(steps)}
            write_whole(path, _dumps(beat), durable=False)
        else:
            path.unlink(missing_ok=True)

    def plan(self) -> dict[str, Any]:
        """The `name` and `settings` of sweep.json, and the planned `rows` (see `rows`).

        Raises UserError if there is no plan or it is damaged.
        """
        path = self.path / "sweep.json"
        if (read_bytes(path) or b"").startswith(b'{"schema": 1,'):
            from oodbench.results.earlier import convert

            convert(self)
        sweep = read_file(path, SweepFile)
        if sweep is None:
            if not self.path.exists():
                raise UserError(f"there is no directory {self.path}")
            more = "; a launch of the sweep into it writes the plan again"
            more *= (self.path / "ended").is_dir()
            raise UserError(f"{self.path} holds no sweep (no readable sweep.json){more}")
        return {"name": sweep.name, "settings": dict(sweep.settings), "rows": self.rows()}

    def rows(self) -> "pd.DataFrame":
        """Planned runs, one per row that contains them: `id` and the fields of the spec."""
        from oodbench.results.parquet import SPEC, read_table, runs_frame

        return runs_frame(read_table(self.path / "plan.parquet", SPEC))

    def specs(self) -> dict[str, RunSpec]:
        """The planned runs by id, each in its first row; raises as `plan`."""
        from oodbench.results.parquet import specs_of

        rows = self.plan()["rows"].drop_duplicates("id")
        return dict(zip(rows["id"], specs_of(rows), strict=True))

    def start_anew(self, ids: Collection[str]) -> None:
        """Have the next launch train these runs from their first step.

        A run that another process trains is left alone.
        """
        ended(self.path).forget(ids)
        for run_id in ids:
            run = self.run(run_id)
            with suppress(Timeout), run.lock():
                run.checkpoint.unlink(missing_ok=True)
                run.forget()

    def plan_lock(self) -> FileLock:
        """The lock of a process that adds runs to the plan; raises UserError in a foreign folder."""
        self._check_ours()
        self.path.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / "sweep.lock")

    def check(self, name: str, settings: Mapping[str, Any]) -> None:
        """Raise UserError if the directory holds anything but the sweep that `write_plan` gets."""
        self._check_ours()
        if (self.path / "sweep.json").exists():
            self._check_same(name, settings, self.plan())

    def _check_ours(self) -> None:
        if not (self.path / "sweep.json").exists() and self.path.exists():
            # another process may have just begun
            ours = {"sweep.json", "sweep.lock", "plan.parquet", "runs"}
            ours |= {"ended", "kept", "data", "plugins", "heartbeats"}  # of a plan that is lost
            if not all(path.name in ours or is_temporary(path) for path in self.path.iterdir()):
                raise UserError(
                    f"{self.path} is not empty and holds no sweep; use another directory"
                )

    def write_plan(
        self,
        name: str,
        settings: Mapping[str, Any],
        rows: Sequence[RunSpec],
        without: Collection[str] = (),
        replacing: bool = False,
    ) -> None:
        """Add rows to the plan, and remove the runs `without`, by id, under the plan's lock.

        `replacing` also removes stored runs that stand at the `PLACE` of a run given here, as after an
        edit of hyperparameters. Their results stay in the tables.

        Runs belong to the rows given here. If a run is given in another row than the stored one, and the
        stored row is not among those given, the whole stored row is renamed. `settings` override the
        stored ones; plug-ins are added. Raises UserError if the directory holds another
        sweep, by its name or by a key of `settings["sweep"]`.
        """
        import pandas as pd

        from oodbench.results.parquet import spec_columns
        from oodbench.results.tables import stacked_runs

        with self.plan_lock():
            new = pd.DataFrame(spec_columns(rows, [spec.id for spec in rows]))
            known: Mapping[str, Any] = {}
            if (self.path / "sweep.json").exists():
                stored = self.plan()
                known, before = stored["settings"], stored["rows"]
                self._check_same(name, settings, stored)
                before = _renamed(before[~before["id"].isin(list(without))], new)
                gone = before["id"].isin(new["id"])
                if replacing:
                    gone |= _places(before).isin(_places(new))
                new = stacked_runs([before[~gone], new])
            plugins = dict.fromkeys([*known.get("plugins", ()), *settings.get("plugins", ())])
            more = {"plugins": list(plugins)} if plugins else {}
            self.store(name, {**known, **settings, **more}, new)

    def findings(self) -> dict[str, list[dict[str, Any]]]:
        """What audits found in the data, as `Finding`, by the dataset's label; empty if unknown."""
        with suppress(DamagedFile):
            return read_file(self.path / "audit.json", FINDINGS) or {}
        return {}

    def keep_findings(self, findings: Mapping[str, Sequence[Finding]]) -> None:
        """Replace the findings on these datasets, by label."""
        now = {label: [asdict(each) for each in found] for label, found in findings.items()}
        if any((known := self.findings() | now).values()) or (self.path / "audit.json").exists():
            write_whole(self.path / "audit.json", _dumps(known))

    def store(self, name: str, settings: Mapping[str, Any], rows: "pd.DataFrame") -> None:
        """Overwrite the plan; `rows` has the form that `rows` returns."""
        from oodbench.results.parquet import SPEC, table_of, write_table

        write_table(table_of(rows, SPEC), self.path / "plan.parquet")
        text = _dumps({"schema": SCHEMA, "name": name, "settings": settings})
        write_whole(self.path / "sweep.json", text)

    def _check_same(
        self, name: str, settings: Mapping[str, Any], stored: Mapping[str, Any]
    ) -> None:
        if stored["name"] != name:
            raise UserError(
                f"{self.path} holds the sweep '{stored['name']}', not '{name}'; use another directory"
            )
        if "sweep" not in settings:
            return
        earlier, shared = stored["settings"].get("sweep", {}), settings["sweep"]
        for key in dict.fromkeys([*shared, *earlier]):
            if earlier.get(key) != shared.get(key):
                raise UserError(
                    f"{self.path} holds '{name}' with {key} {earlier.get(key)}, "
                    f"not {shared.get(key)}; use another directory"
                )


def _places(rows: "pd.DataFrame") -> "pd.Series[Any]":
    return rows[PLACE].apply(tuple, axis=1) if len(rows) else rows["id"]


def _renamed(before: "pd.DataFrame", new: "pd.DataFrame") -> "pd.DataFrame":
    """Stored rows; a row that `new` lacks is renamed as a whole if `new` relabels one of its runs."""
    place = ["dataset_label", "label"]
    named = set(new[place].itertuples(index=False, name=None))
    other = before.merge(new[["id", "label"]], on="id", suffixes=("", "_new"))
    given = other.drop_duplicates(place)[[*place, "label_new"]].itertuples(index=False, name=None)
    renamed = {(dataset, label): new for dataset, label, new in given}
    rows = before[place].itertuples(index=False, name=None)
    labels = [row[1] if row in named else renamed.get(row, row[1]) for row in rows]
    return before.assign(label=labels)
