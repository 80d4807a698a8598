"""A results directory: its plan, and its runs in folders and in tables.

docs/guide/results_format.md lists its files. Each is written under a temporary name and renamed.
"""

import os
import platform
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from oodbench.errors import UserError, some
from oodbench.files import is_temporary, write_whole
from oodbench.notes import Finding
from oodbench.results.ended import FOLDER, SMALL, Ended, ended, lock, write_part
from oodbench.results.run_directory import RunDirectory, dumps, kept_weights, process_beat
from oodbench.results.run_spec import COMPLETE, RunSpec, RunStatus
from oodbench.results.schemas import SCHEMA, DamagedFile, SweepFile, read_bytes, read_file

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ROW_LABELS = ["dataset_label", "label", "ceiling", "transductive", "reference"]
"""The columns of a run that depend on the row of the plan."""
PLAN_KEY = ["dataset_label", "label", "test_environments", "draw", "trial"]
"""The columns that identify a run in a plan."""
PLUGINS = "plugins"
"""The folder of copies of classes from scripts and notebooks."""
FINDINGS = TypeAdapter(dict[str, list[dict[str, Any]]])
LAST = "last"
"""The name of the last step's weights, in place of a selection rule."""


class Directory:
    """A results directory: the planned runs and their files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, run_id: str) -> RunDirectory:
        """The directory of a run; a suffix after `@`, which tables with boards add, is ignored."""
        return RunDirectory(self.path / "runs" / run_id.partition("@")[0])

    def kept_weights(self, ids: Iterable[str]) -> dict[str, dict[tuple[str, int], Path]]:
        """The files of kept weights by run id, then rule and step; runs without a folder are left out."""
        there = self.names("kept")
        return {i: kept_weights(self.run(i)) for i in ids if i in there}

    def beat(self, steps: Mapping[str, int]) -> None:
        """Write the step of each run that this process trains, by id; without runs, remove the file."""
        path = process_beat(self.path, platform.node(), os.getpid())
        if steps:
            path.parent.mkdir(exist_ok=True)
            beat = {"time": time.time(), "steps": dict(steps)}
            write_whole(path, dumps(beat), durable=False)
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
            inside = some(sorted(str(file.parent) for file in self.path.glob("*/sweep.json")), 4)
            more = f"; name one of {inside}" if inside else ""
            if next(self.path.glob("*/results.jsonl"), None):
                more = "; `report import-domainbed` makes a results directory of DomainBed's"
            if (self.path / "ended").is_dir():
                more = "; a launch of the sweep into it writes the plan again"
            raise UserError(f"{self.path} holds no sweep (no readable sweep.json){more}")
        return {"name": sweep.name, "settings": dict(sweep.settings), "rows": self.rows()}

    def rows(self) -> "pd.DataFrame":
        """Planned runs, one per row that contains them: `id` and the fields of the spec."""
        from oodbench.results.parquet import SPEC, read_table, runs_frame

        file = self.path / "plan.parquet"
        return runs_frame(read_table(file, SPEC), str(file))

    def specs(self) -> dict[str, RunSpec]:
        """The planned runs by id, each in its first row; raises as `plan`."""
        from oodbench.results.parquet import specs_of

        rows = self.plan()["rows"].drop_duplicates("id")
        return dict(zip(rows["id"], specs_of(rows), strict=True))

    def statuses(self, ids: Iterable[str]) -> dict[str, RunStatus]:
        """The status of runs by the disk alone, which knows no queues."""
        known = ended(self.path).states  # in one look, as there may be many
        return {
            i: RunStatus(known[i]) if i in known else RunStatus(*self.run(i).state_and_reason())
            for i in ids
        }

    def names(self, folder: str) -> set[str]:
        """The names in a folder of the directory; empty if the folder does not exist."""
        with suppress(OSError):
            return {*os.listdir(self.path / folder)}  # noqa: PTH208 (fast)
        return set()

    def read_folders(self, ids: Sequence[str]) -> "tuple[pd.DataFrame, pa.Table]":
        """The columns ABOUT, by id, and the records of runs that are in folders."""
        import pandas as pd

        from oodbench.results.parquet import ABOUT, RECORDS, table_of

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # a disk may be slow
            found = list(pool.map(RunDirectory.row, map(self.run, ids)))
        rows = [row for _, of_run in found for row in of_run]
        about = pd.DataFrame([of for of, _ in found], pd.Index(list(ids), dtype="object"), ABOUT)
        return about, table_of(pd.DataFrame(rows, columns=RECORDS.names), RECORDS)

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
        """The lock for changing the plan; raises UserError if the folder is not a results directory."""
        self._check_ours()
        self.path.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / "sweep.lock")

    def check(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The stored plan, or empty; raises UserError if the sweep's name or settings differ from it."""
        self._check_ours()
        if not (self.path / "sweep.json").exists():
            return {}
        stored = self.plan()
        if stored["name"] != name:
            raise UserError(
                f"{self.path} holds the sweep '{stored['name']}', not '{name}'; use another directory"
            )
        earlier, shared = stored["settings"].get("sweep", {}), settings.get("sweep", {})
        for key in dict.fromkeys([*shared, *earlier]) if shared else ():
            if earlier.get(key) != shared.get(key):
                raise UserError(
                    f"{self.path} holds '{name}' with {key} {earlier.get(key)}, "
                    f"not {shared.get(key)}; use another directory"
                )
        return stored

    def _check_ours(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file; use another directory")
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

        `replacing` also removes stored runs that stand at the `PLAN_KEY` of a run given here, as after an
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
            stored = self.check(name, settings)
            known: Mapping[str, Any] = stored.get("settings", {})
            if stored:
                before = stored["rows"]
                before = _renamed(before[~before["id"].isin(list(without))], new)
                gone = before["id"].isin(new["id"])
                if replacing:
                    places = new.set_index(PLAN_KEY).index
                    gone |= before.set_index(PLAN_KEY).index.isin(places)
                new = stacked_runs([before[~gone], new])
            plugins = dict.fromkeys([*known.get("plugins", ()), *settings.get("plugins", ())])
            more = {"plugins": list(plugins)} if plugins else {}
            self.store(name, {**known, **settings, **more}, new)

    def findings(self) -> dict[str, list[dict[str, Any]]]:
        """What audits found in the data, each a `Finding` as a dict, by dataset label; empty if unknown."""
        with suppress(DamagedFile):
            return read_file(self.path / "audit.json", FINDINGS) or {}
        return {}

    def keep_findings(self, findings: Mapping[str, Sequence[Finding]]) -> None:
        """Replace the findings on these datasets, given by label."""
        now = {label: [asdict(each) for each in found] for label, found in findings.items()}
        if any((known := self.findings() | now).values()) or (self.path / "audit.json").exists():
            write_whole(self.path / "audit.json", dumps(known))

    def store(self, name: str, settings: Mapping[str, Any], rows: "pd.DataFrame") -> None:
        """Overwrite the plan; `rows` has the columns of `Directory.rows`."""
        from oodbench.results.parquet import SPEC, table_of, write_table

        write_table(table_of(rows, SPEC), self.path / "plan.parquet")
        text = dumps({"schema": SCHEMA, "name": name, "settings": settings})
        write_whole(self.path / "sweep.json", text)


def _renamed(before: "pd.DataFrame", new: "pd.DataFrame") -> "pd.DataFrame":
    """Rename each stored row that `new` lacks, if `new` has one of its runs in another row.

    Rows that become one have each run once.
    """
    row = ["dataset_label", "label"]
    shared = before.merge(new[["id", *row]], on="id", suffixes=("", "_new"))
    same, same_label = (shared[name] == shared[f"{name}_new"] for name in row)
    shared = shared.assign(kept=2 * same + same_label)  # the row that keeps most of the name
    shared = shared.sort_values("kept", ascending=False, kind="stable")
    named = shared.drop_duplicates(row).set_index(row)[[f"{name}_new" for name in row]]
    names = dict(zip(named.index, named.itertuples(index=False, name=None), strict=True))
    names |= {key: key for key in new[row].itertuples(index=False, name=None)}
    found = [names.get(key, key) for key in before[row].itertuples(index=False, name=None)]
    renamed = before.assign(**{name: [key[i] for key in found] for i, name in enumerate(row)})
    return renamed.drop_duplicates(["id", *row])


def compact(directory: Directory, patient: bool = True) -> int:
    """Move the planned runs that have ended into the tables; returns their number.

    The runs get the labels of the plan. Small parts are merged. The folders of runs are removed once the
    tables are on disk; until then a run is in both, and counts once. Unless `patient`, does nothing if
    another process is compacting. Raises OSError, for example if the disk is full, and UserError without a
    plan; ended runs then stay in their folders.
    """
    from oodbench.results.parquet import RUNS, of_runs
    from oodbench.results.tables import stacked_runs

    results, rows = directory.path, directory.plan()["rows"]
    with suppress(Timeout), lock(results, patient):
        now, folders = ended(results), directory.names("runs")
        waiting = [i for i in rows["id"].unique() if i in folders and i not in now]
        found = [i for i in waiting if (results / "runs" / i / "done.json").exists()]
        about, records = directory.read_folders(found)
        about = about[about["state"].isin(COMPLETE)]
        chosen = _to_merge(now, rows, len(about) > 0)
        if now.contradicted.keys() - {*about.index}:
            # parts that contradict each other stay until all these runs have ended again
            chosen, about = [], about[~about.index.isin(list(now.contradicted))]
        elif now.contradicted:
            chosen = [*now.parts]
        if chosen or len(about):
            new = rows[rows["id"].isin(about.index)].join(about, on="id")[RUNS.names]
            kept = _in_rows(now.runs[now.runs["part"].isin(chosen)], rows)
            write_part(now, chosen, stacked_runs([kept, new]), of_runs(records, about.index))
        _clean(results, folders & {*now.runs["id"], *about.index})
        return len(about)
    return 0


def _to_merge(now: Ended, rows: "pd.DataFrame", more: bool) -> list[str]:
    """The parts to merge: small ones, and those with outdated labels. `more`: whether new runs come."""

    def keys(runs: "pd.DataFrame") -> set[tuple[object, ...]]:
        return set(runs[["id", *ROW_LABELS]].itertuples(index=False, name=None))

    small = {key for key, size in now.parts.items() if size < SMALL}
    by_part = now.runs.groupby("part")
    old = {str(key) for key, of in by_part if keys(of) != keys(_in_rows(of, rows))}
    return sorted(small | old) if more or old or len(small) > 1 else []


def _in_rows(runs: "pd.DataFrame", rows: "pd.DataFrame") -> "pd.DataFrame":
    """Repeat each run for every row of the plan that contains it; unplanned runs keep their rows."""
    from oodbench.results.tables import stacked_runs

    once = runs.drop_duplicates("id")
    planned = rows[["id", *ROW_LABELS]].merge(once.drop(columns=ROW_LABELS), on="id")
    others = runs[~runs["id"].isin(rows["id"])]
    return stacked_runs([planned[list(runs)], others])


def _clean(results: Path, ids: Collection[str]) -> None:
    """Remove the folders of runs that are in the tables, and leftovers of an interrupted compaction."""
    for run_id in ids:
        folder = results / "runs" / run_id
        with suppress(OSError, Timeout), FileLock(folder / "lock", blocking=False):
            shutil.rmtree(folder, ignore_errors=True)
    for path in list((results / FOLDER).iterdir()):
        runs = path.with_name(path.name.replace("records-", "runs-", 1))
        if is_temporary(path) or not os.path.lexists(runs):
            path.unlink(missing_ok=True)
