"""The ended runs of a results directory: OUT/ended/runs-KEY.parquet and records-KEY.parquet.

KEY is the first 16 digits of the SHA-256 of both files, so that damage is noticed. The `records` file is
written first: a run in a `runs` file has ended. `compact` in `directory.py` moves ended runs here.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from oodbench.files import write_whole
from oodbench.identity import digest_of
from oodbench.results.run_spec import State
from oodbench.results.schemas import CONTEXT, DamagedFile, RunFile, read_bytes, records_in

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FOLDER = "ended"
SMALL = 2**25
"""Parts with fewer bytes of records are merged with others by the next compaction."""


@dataclass(frozen=True)
class Ended:
    """The ended runs of a results directory at the time of reading."""

    path: Path
    """The results directory."""
    runs: "pd.DataFrame"
    """A row for each row of the plan that contains a run: the columns `oodbench.results.parquet.RUNS`, and
    `part`, the key of the part that holds the run. After an interrupted merge several parts may hold it;
    then the first is taken."""
    records: "pa.Table"
    """The columns `oodbench.results.parquet.RECORDS`."""
    parts: Mapping[str, int]
    """The size in bytes of each part's records file, by key."""
    damaged: tuple[str, ...]
    """A sentence for each part that is left out because it is damaged."""
    contradicted: Mapping[str, str]
    """A sentence for each run that is left out because two parts disagree about it, by run id."""

    @property
    def wrong(self) -> tuple[str, ...]:
        """A sentence for each part and each run that is left out."""
        return *self.damaged, *self.contradicted.values()

    @cached_property
    def states(self) -> dict[str, State]:
        """How each run ended, by id."""
        return dict(zip(self.runs["id"], map(State, self.runs["state"]), strict=True))

    @cached_property
    def provenances(self) -> dict[str, dict[str, Any]]:
        """The provenance of each run, by id."""
        return dict(zip(self.runs["id"], self.runs["provenance"], strict=True))

    def __contains__(self, run_id: object) -> bool:
        return run_id in self.states

    def info(self, run_id: str) -> RunFile:
        """The content of a run's former run.json, with the labels of its first row."""
        from oodbench.results.parquet import specs_of

        row = self.runs[self.runs["id"] == run_id][:1].astype(object)
        row = row.where(row.notna(), None)
        values = row.iloc[0]
        context = {n: values[n] for n in ("dataset_label", *CONTEXT) if values[n] is not None}
        context |= values["context"] or {}
        context["training_environments"] = list(context["training_environments"])
        made = values["provenance"] or {}
        return RunFile.model_construct(spec=specs_of(row)[0], context=context, provenance=made)

    def records_of(self, run_id: str) -> list[dict[str, Any]]:
        """The records of a run in the order of their steps."""
        from oodbench.results.parquet import of_runs

        columns = of_runs(self.records, [run_id]).to_pydict().values()
        return records_in(zip(*columns, strict=True))

    def forget(self, ids: Collection[str]) -> None:
        """Remove runs from the files, so that they are trained again."""
        if any(run_id in self for run_id in ids):
            with lock(self.path):
                now = ended(self.path)
                write_part(now, now.parts, now.runs[~now.runs["id"].isin(list(ids))])


def ended(results: Path) -> Ended:
    """The ended runs of a results directory; each file is read once."""
    folder = results / FOLDER
    while True:
        try:
            with os.scandir(folder) as entries:
                files = [e for e in entries if e.name.endswith(".parquet")]
            found = ((file.name, file.stat(follow_symlinks=False)) for file in files)
            stamps = sorted((name, s.st_size, s.st_mtime_ns) for name, s in found)
            return _read(str(folder), tuple(stamps))
        except (FileNotFoundError, NotADirectoryError):
            if not folder.is_dir():
                return _read(str(folder), ())
            # merged by another process meanwhile


@lru_cache(maxsize=8)
def _read(folder: str, stamps: tuple[tuple[str, int, int], ...]) -> Ended:
    """Read a folder; `stamps` has the name, size and modification time of each file."""
    import pyarrow as pa

    from oodbench.results.parquet import RECORDS, RUNS, of_runs, runs_frame
    from oodbench.results.tables import stacked_runs

    frames = [runs_frame(RUNS.empty_table()).assign(part="")]
    records, sizes, damaged = dict[str, pa.Table](), dict[str, int](), []
    for name, *_ in stamps:
        if name.startswith("runs-"):
            key = name.removeprefix("runs-").removesuffix(".parquet")
            try:
                frame, records[key], sizes[key] = _part(*files_of(folder, key), key)
                frames.append(frame.assign(part=key))
            except DamagedFile as error:
                until = "its runs count as not trained until a launch trains them again"
                damaged.append(f"{error}; {until}; then delete it")
    runs, unlike = stacked_runs(frames[1:] or frames), dict[str, str]()
    if runs.drop_duplicates(["id", "part"])["id"].duplicated().any():
        unlike = _unlike(runs, records, folder)
        first = runs["part"] == runs.groupby("id")["part"].transform("min")
        runs = runs[first & ~runs["id"].isin(list(unlike))]
        ids = {key: runs.loc[runs["part"] == key, "id"].unique() for key in records}
        records = {key: of_runs(table, ids[key]) for key, table in records.items()}
    whole = pa.concat_tables([RECORDS.empty_table(), *records.values()])
    return Ended(Path(folder).parent, runs, whole, sizes, tuple(damaged), unlike)


def _unlike(runs: "pd.DataFrame", records: "dict[str, pa.Table]", folder: str) -> dict[str, str]:
    from oodbench.results.parquet import of_runs

    places = runs.drop_duplicates(["id", "part"])[["id", "part", "state", "last_step"]]
    found = {}
    for run_id, of_run in places[places.duplicated("id", keep=False)].groupby("id"):
        outcomes = {
            repr((*outcome, of_runs(records[key], [str(run_id)]).to_pylist()))
            for _, key, *outcome in of_run.itertuples(index=False, name=None)
        }
        if len(outcomes) > 1:
            one, other, *_ = (files_of(folder, key)[1] for key in of_run["part"])
            found[str(run_id)] = f"{one} and {other} have unlike records of the run {run_id}"
    return found


def files_of(folder: str | Path, key: str) -> tuple[Path, Path]:
    """The two files of a part: its runs and their records."""
    return Path(folder) / f"runs-{key}.parquet", Path(folder) / f"records-{key}.parquet"


def _part(runs: Path, records: Path, key: str) -> "tuple[pd.DataFrame, pa.Table, int]":
    from oodbench.results.parquet import RECORDS, RUNS, count_records, parsed, runs_frame

    of_runs, of_records = read_bytes(runs), read_bytes(records)
    if of_runs is None or of_records is None:
        if not os.path.lexists(runs):
            raise FileNotFoundError(str(runs))
        raise DamagedFile(f"{runs if of_runs is None else records} is missing")
    if digest_of(of_runs + of_records) != key:
        raise DamagedFile(f"{runs} or {records.name} is damaged: they are not what was written")
    frame = runs_frame(parsed(of_runs, RUNS, str(runs)), str(runs))
    table = parsed(of_records, RECORDS, str(records))
    count_records(frame, table, str(records))
    return frame, table, len(of_records)


def lock(results: Path, patient: bool = True) -> FileLock:
    """The lock for writing the tables; without `patient`, acquiring it raises Timeout if it is held."""
    folder = results / FOLDER
    folder.mkdir(exist_ok=True)
    return FileLock(folder / ".lock", blocking=patient)


def write_part(
    now: Ended, merged: Collection[str], runs: "pd.DataFrame", new: "pa.Table | None" = None
) -> None:
    """Write `runs` as one part, with their records from `now` and `new`, and remove the `merged` parts."""
    import pyarrow as pa

    from oodbench.results.parquet import RECORDS, RUNS, content_of, of_runs, table_of

    folder, key = now.path / FOLDER, ""
    if len(runs):
        tables = [RECORDS.empty_table() if new is None else new]
        tables.append(of_runs(now.records, runs["id"].unique()))
        rows = content_of(table_of(runs, RUNS))
        records = content_of(pa.concat_tables(tables).unify_dictionaries())
        key = digest_of(rows + records)
        runs_file, records_file = files_of(folder, key)
        write_whole(records_file, records)  # first, as a run in a `runs` file has ended
        write_whole(runs_file, rows)
    for path in (path for old in {*merged} - {key} for path in files_of(folder, old)):
        path.unlink(missing_ok=True)
