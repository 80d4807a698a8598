"""The ended runs of a results directory: OUT/ended/runs-KEY.parquet and records-KEY.parquet.

KEY is the beginning of the SHA-256 of both files of a part, so that damage is noticed. A run has ended when
it is in a `runs` file, which is written after its records. `oodbench.results.compact` moves runs here.
"""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from oodbench.files import whole_file
from oodbench.results.records import parted
from oodbench.results.run_spec import COMPLETE, RunSpec, State
from oodbench.results.schemas import DamagedFile, DoneFile, RunFile, read_bytes

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
    content: bytes = field(repr=False)
    """The bytes of the file of records."""
    place: str

    @cached_property
    def records(self) -> "pa.Table":
        """The columns `oodbench.results.parquet.RECORDS`; raises DamagedFile."""
        from oodbench.results.parquet import RECORDS, parsed

        table = parsed(self.content, RECORDS, self.place)
        if missing := [n for n in ("id", "step", "metric") if table[n].null_count]:
            raise DamagedFile(f"{self.place} has a record without {missing[0]}")
        return table


@dataclass(frozen=True)
class Ended:
    """The ended runs of a results directory, as they were when it was looked at."""

    path: Path
    """The results directory."""
    parts: tuple[Part, ...] = ()
    wrong: tuple[str, ...] = ()
    """A sentence on each part that is left out."""

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """The runs of all parts, a row for each row of the plan; `part` is the index of a run's part.

        Of a run in several parts the first is taken if all say the same, else none.
        """
        import pandas as pd

        from oodbench.results.parquet import RUNS
        from oodbench.results.tables import stacked_runs

        if not self.parts:
            return pd.DataFrame(columns=[*RUNS.names, "part"])
        runs = stacked_runs([part.runs.assign(part=i) for i, part in enumerate(self.parts)])
        first = runs.groupby("id")["part"].transform("min")
        return runs[(runs["part"] == first) & ~runs["id"].isin(list(self.contradicted))]

    @cached_property
    def contradicted(self) -> dict[str, str]:
        """The runs that several parts have with unlike records, with a sentence on each."""
        places: dict[str, list[Part]] = {}
        for part in self.parts:
            for run_id in part.runs["id"].unique():
                places.setdefault(run_id, []).append(part)
        several = {i: parts for i, parts in places.items() if len(parts) > 1}
        return {
            run_id: f"{parts[0].place} and {parts[1].place} have unlike records of the run {run_id}"
            for run_id, parts in several.items()
            if len({_content(part, run_id) for part in parts}) > 1
        }

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The columns of each run by id, in its first row."""
        once = self.runs.drop_duplicates("id").astype(object)
        rows = once.where(once.notna(), None).to_dict(orient="records")
        return {str(row["id"]): {str(name): v for name, v in row.items()} for row in rows}

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

    def state(self, run_id: str) -> State:
        """Return how a run ended."""
        return self.states[run_id]

    def end(self, run_id: str) -> DoneFile:
        """Return how a run ended as done.json said it."""
        row = self.rows[run_id]
        values = {"status": State(row["state"]), "step": row["last_step"], "id": run_id}
        return DoneFile.model_construct(seconds=row["training_seconds"], **values)

    def info(self, run_id: str) -> RunFile:
        """Return what run.json said of a run."""
        row = self.rows[run_id]
        names = ("dataset_label", "training_environments", "metric", "higher_is_better", "constant")
        context = {n: row[n] for n in names if row[n] is not None} | (row["context"] or {})
        context["training_environments"] = list(context["training_environments"])
        spec = RunSpec.from_json(row)
        made = row["provenance"] or {}
        return RunFile.model_construct(schema_=2, spec=spec, context=context, provenance=made)

    def records_of(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records of a run in the order of their steps."""
        import pyarrow.compute as pc

        table = self.parts[self.rows[run_id]["part"]].records
        names = ("environment", "split", "metric", "count")
        values: dict[int, list[Any]] = {}
        for row in table.filter(pc.equal(table["id"], run_id)).to_pylist():
            of_step = values.setdefault(row["step"], [])
            of_step.append((tuple(row[name] for name in names), row["value"]))
        return [{"step": step, **parted(of_step)} for step, of_step in values.items()]

    def forget(self, ids: Collection[str]) -> None:
        """Remove runs, which are to be trained again, from the files."""
        if any(run_id in self for run_id in ids):
            with lock(self.path):
                now = ended(self.path)
                write_part(now, [*range(len(now.parts))], [], set(ids))


def _content(part: Part, run_id: str) -> str:
    """Return the rows of a run, and its records, as a text."""
    import pyarrow.compute as pc

    records = part.records.filter(pc.equal(part.records["id"], run_id)).to_pylist()
    runs = part.runs[part.runs["id"] == run_id]
    return repr((runs[["state", "last_step"]].to_dict(orient="records"), records))


def ended(results: Path) -> Ended:
    """Return the ended runs of a results directory; what is on the disk is read once."""
    folder = results / FOLDER
    while True:
        try:
            with os.scandir(folder) as entries:
                files = [entry for entry in entries if _is_of_part(entry.name)]
        except (FileNotFoundError, NotADirectoryError):
            return Ended(results)
        try:
            found = ((file.name, file.stat(follow_symlinks=False)) for file in files)
            stamps = sorted((name, s.st_size, s.st_mtime_ns) for name, s in found)
            return _read(str(folder), tuple(stamps))
        except FileNotFoundError:  # merged by another process meanwhile
            continue


def _is_of_part(name: str) -> bool:
    return bool(key_in(name, "runs-") or key_in(name, "records-"))


def key_in(name: str, kind: str) -> str:
    """Return the key of a file of runs or records; empty for other files."""
    is_one = name.startswith(kind) and name.endswith(".parquet")
    return name.removeprefix(kind).removesuffix(".parquet") if is_one else ""


@lru_cache(maxsize=8)
def _read(folder: str, stamps: tuple[tuple[str, int, int], ...]) -> Ended:
    """Return the parts of a folder; `stamps` are the names, sizes and times of change of its files."""
    parts, wrong = [], []
    for key in filter(None, (key_in(name, "runs-") for name, *_ in stamps)):
        try:
            parts.append(_part(Path(folder), key))
        except DamagedFile as error:
            wrong.append(
                f"{error}; its runs count as not trained until a launch trains them again; then delete it"
            )
    return Ended(Path(folder).parent, tuple(parts), tuple(wrong))


def _part(folder: Path, key: str) -> Part:
    """Return a part; raises DamagedFile, and FileNotFoundError if it is gone."""
    from oodbench.results.parquet import RUNS, key_of, parsed, runs_frame

    paths = [folder / f"{kind}-{key}.parquet" for kind in ("runs", "records")]
    runs, records = map(read_bytes, paths)
    if runs is None or records is None:
        if not os.path.lexists(paths[0]):
            raise FileNotFoundError(str(paths[0]))
        raise DamagedFile(f"{paths[runs is not None]} is missing")
    table = parsed(runs, RUNS, str(paths[0]))
    try:
        frame = runs_frame(table)
    except DamagedFile as error:
        raise DamagedFile(f"{paths[0]}: {error}") from None
    if key_of(runs, records) != key:
        raise DamagedFile(
            f"{paths[0]} or {paths[1].name} is damaged: they are not what was written"
        )
    if frame[["id", "last_step", "records"]].isna().any(axis=None):
        raise DamagedFile(f"{paths[0]} has a run without an id, a last step or records")
    if not frame["state"].isin(COMPLETE).all():
        raise DamagedFile(f"{paths[0]} has a run that has not ended")
    return Part(key, frame, records, str(paths[1]))


def lock(results: Path, patient: bool = True) -> FileLock:
    """Return the lock of whoever writes the tables; unless `patient`, acquiring it may raise Timeout."""
    folder = results / FOLDER
    folder.mkdir(exist_ok=True)
    return FileLock(folder / ".lock", blocking=patient)


def write_part(
    now: Ended,
    chosen: Sequence[int],
    new: "Sequence[tuple[pd.DataFrame, pa.Table]]",
    without: Collection[str],
    rows: Callable[["pd.DataFrame"], "pd.DataFrame"] = lambda runs: runs,
) -> None:
    """Write the chosen parts, whose runs get other `rows`, and new runs as one; remove the chosen ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from oodbench.results.parquet import RECORDS, RUNS, content_of, key_of, table_of
    from oodbench.results.tables import stacked_runs

    own = now.runs
    kept = own[own["part"].isin(chosen) & ~own["id"].isin(list(without))]
    tables = [RECORDS.empty_table(), *(records for _, records in new)]
    for i in chosen:  # of a run in several parts, the records of one are kept
        ids = pa.array(kept.loc[kept["part"] == i, "id"].unique(), pa.string())
        tables.append(_plain(now.parts[i].records).filter(pc.field("id").isin(ids)))
    runs = stacked_runs([rows(kept.drop(columns="part")), *(runs for runs, _ in new)])
    records = pa.concat_tables(tables)
    folder, key = now.path / FOLDER, ""
    if len(runs):
        contents = content_of(table_of(runs, RUNS)), content_of(records)
        key = key_of(*contents)
        for kind, content in (("records", contents[1]), ("runs", contents[0])):
            with whole_file(folder / f"{kind}-{key}.parquet") as file:
                file.write(content)
    for part in (now.parts[i] for i in chosen):
        if part.key != key:
            (folder / f"runs-{part.key}.parquet").unlink(missing_ok=True)
            (folder / f"records-{part.key}.parquet").unlink(missing_ok=True)


def _plain(records: "pa.Table") -> "pa.Table":
    from oodbench.results.parquet import RECORDS

    return records.cast(RECORDS)
