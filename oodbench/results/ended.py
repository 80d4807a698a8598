"""The ended runs of a results directory: OUT/ended/runs-KEY.parquet and records-KEY.parquet.

KEY is the beginning of the SHA-256 of both files of a part, so that damage is noticed. A run has ended when
it is in a `runs` file, which is written after its records. `compact` of `directory.py` moves runs here.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from oodbench.files import whole_file
from oodbench.identity import digest_of
from oodbench.results.run_spec import State
from oodbench.results.schemas import CONTEXT, DamagedFile, RunFile, read_bytes, records_in

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FOLDER = "ended"
SMALL = 2**25
"""The bytes of a part's records below which the next compaction merges it with others."""


@dataclass(frozen=True)
class Part:
    """A file of runs with the file of their records."""

    key: str
    runs: "pd.DataFrame"
    """The columns `oodbench.results.parquet.RUNS`."""
    records: "pa.Table"
    """The columns `oodbench.results.parquet.RECORDS`."""
    size: int
    """The bytes of the file of records."""
    place: str
    """That file."""

    def outcome(self, run_id: str) -> str:
        """How a run ended, and its records, as a text."""
        from oodbench.results.parquet import of_runs

        runs = self.runs.loc[self.runs["id"] == run_id, ["state", "last_step"]]
        return repr((runs.to_numpy().tolist(), of_runs(self.records, [run_id]).to_pylist()))


@dataclass(frozen=True)
class Ended:
    """The ended runs of a results directory, as they were when it was looked at."""

    path: Path
    """The results directory."""
    parts: tuple[Part, ...] = ()
    unread: tuple[str, ...] = ()
    """A sentence on each part that is left out."""

    @cached_property
    def wrong(self) -> tuple[str, ...]:
        """A sentence on each part and each run that is left out."""
        return *self.unread, *self.contradicted.values()

    @cached_property
    def contradicted(self) -> dict[str, str]:
        """Runs whose records differ between parts: a sentence by run id."""
        places = self._rows[["id", "part"]].drop_duplicates()
        several = places[places.duplicated("id", keep=False)].groupby("id")["part"]
        found = {str(run_id): [self.parts[i] for i in at] for run_id, at in several}
        return {
            i: f"{parts[0].place} and {parts[1].place} have unlike records of the run {i}"
            for i, parts in found.items()
            if len({part.outcome(i) for part in parts}) > 1
        }

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """The runs of all parts, a row for each row of the plan; `part` is the index of a run's part.

        A run in several parts, as after an interrupted merge, is taken from the first if all agree, and
        is left out otherwise.
        """
        rows = self._rows
        first = rows["part"] == rows.groupby("id")["part"].transform("min")
        return rows[first & ~rows["id"].isin(list(self.contradicted))]

    @cached_property
    def _rows(self) -> "pd.DataFrame":
        import pandas as pd

        from oodbench.results.parquet import RUNS
        from oodbench.results.tables import stacked_runs

        if not self.parts:
            return pd.DataFrame(columns=[*RUNS.names, "part"])
        return stacked_runs([part.runs.assign(part=i) for i, part in enumerate(self.parts)])

    @cached_property
    def states(self) -> dict[str, State]:
        """How each run ended, by id."""
        return dict(zip(self.runs["id"], map(State, self.runs["state"]), strict=True))

    @cached_property
    def provenances(self) -> dict[str, dict[str, Any]]:
        """The provenance of each run, by id."""
        return dict(zip(self.runs["id"], self.runs["provenance"], strict=True))

    def __contains__(self, run_id: object) -> bool:
        return bool(self.parts) and run_id in self.states

    def _row(self, run_id: str) -> "pd.DataFrame":
        row = self.runs[self.runs["id"] == run_id][:1].astype(object)
        return row.where(row.notna(), None)

    def info(self, run_id: str) -> RunFile:
        """What run.json said of a run, in its first row."""
        from oodbench.results.parquet import specs_of

        row = self._row(run_id)
        values = row.iloc[0]
        context = {n: values[n] for n in ("dataset_label", *CONTEXT) if values[n] is not None}
        context |= values["context"] or {}
        context["training_environments"] = list(context["training_environments"])
        made = values["provenance"] or {}
        return RunFile.model_construct(spec=specs_of(row)[0], context=context, provenance=made)

    def records_of(self, run_id: str) -> list[dict[str, Any]]:
        """The records of a run in the order of their steps."""
        from oodbench.results.parquet import of_runs

        part = self.parts[self._row(run_id)["part"].iloc[0]]
        columns = of_runs(part.records, [run_id]).to_pydict().values()
        return records_in(zip(*columns, strict=True))

    def forget(self, ids: Collection[str]) -> None:
        """Remove runs, which are to be trained again, from the files."""
        if any(run_id in self for run_id in ids):
            with lock(self.path):
                now = ended(self.path)
                write_part(now, range(len(now.parts)), now.runs[~now.runs["id"].isin(list(ids))])


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
                return Ended(results)
            # merged by another process meanwhile


@lru_cache(maxsize=8)
def _read(folder: str, stamps: tuple[tuple[str, int, int], ...]) -> Ended:
    """Read a folder; `stamps` are the names, sizes and times of change of its files."""
    parts, wrong = [], []
    for name, *_ in stamps:
        try:
            if name.startswith("runs-"):
                parts.append(_part(Path(folder) / name))
        except DamagedFile as error:
            wrong.append(
                f"{error}; its runs count as not trained until a launch trains them again; then delete it"
            )
    return Ended(Path(folder).parent, tuple(parts), tuple(wrong))


def records_file(runs: Path) -> Path:
    """The file of records of a file of runs."""
    return runs.with_name(runs.name.replace("runs-", "records-", 1))


def _part(runs: Path) -> Part:
    from oodbench.results.parquet import RECORDS, RUNS, count_records, parsed, runs_frame

    key, records = runs.stem.removeprefix("runs-"), records_file(runs)
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
    return Part(key, frame, table, len(of_records), str(records))


def lock(results: Path, patient: bool = True) -> FileLock:
    """The lock of the process that writes the tables; unless `patient`, acquiring it may raise Timeout."""
    folder = results / FOLDER
    folder.mkdir(exist_ok=True)
    return FileLock(folder / ".lock", blocking=patient)


def write_part(
    now: Ended, chosen: Sequence[int], runs: "pd.DataFrame", new: "pa.Table | None" = None
) -> None:
    """Write `runs`, which are of the chosen parts or have `new` records, as one part; remove the chosen."""
    import pyarrow as pa

    from oodbench.results.parquet import RECORDS, RUNS, content_of, of_runs, table_of

    tables = [RECORDS.empty_table() if new is None else new]
    for i in chosen:
        tables.append(of_runs(now.parts[i].records, runs.loc[runs["part"] == i, "id"].unique()))
    folder, key = now.path / FOLDER, ""
    if len(runs):
        records = pa.concat_tables(tables).unify_dictionaries()
        contents = content_of(table_of(runs, RUNS)), content_of(records)
        key = digest_of(b"".join(contents))
        for kind, content in (("records", contents[1]), ("runs", contents[0])):
            with whole_file(folder / f"{kind}-{key}.parquet") as file:
                file.write(content)
    for part in (now.parts[i] for i in chosen):
        if part.key != key:
            (folder / f"runs-{part.key}.parquet").unlink(missing_ok=True)
            (folder / f"records-{part.key}.parquet").unlink(missing_ok=True)
