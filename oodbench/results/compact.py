"""Moves the runs that have ended from their folders into the tables of `oodbench.results.ended`.

Tables are on disk before a folder is removed; a run that is in both for a while counts once.
"""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from oodbench.files import is_temporary
from oodbench.results.directory import Directory
from oodbench.results.ended import FOLDER, SMALL, Ended, ended, lock, records_file, write_part
from oodbench.results.parquet import RUNS, of_runs
from oodbench.results.read import read_folders
from oodbench.results.run_spec import COMPLETE
from oodbench.results.tables import KINDS, ROW, stacked_runs

ROW_LABELS = [*ROW, *KINDS]
"""The columns of a run that a plan's rows decide."""


def compact(directory: Directory, patient: bool = True) -> int:
    """Move the planned runs that have ended into the tables; returns their number.

    The runs get the labels of the plan. Small parts are merged, and folders of runs that are in the tables
    are removed. Does nothing if another process is compacting and `patient` is false. Raises OSError, as
    for a full disk, and UserError without a plan; ended runs then stay in their folders.
    """
    results, rows = directory.path, directory.plan()["rows"]
    with suppress(Timeout), lock(results, patient):
        now = ended(results)
        folders = set(_folders(results))
        waiting = [i for i in rows["id"].unique() if i in folders and i not in now]
        found = [i for i in waiting if (results / "runs" / i / "done.json").exists()]
        about, records = read_folders(results, found)
        about = about[about["state"].isin(COMPLETE)]
        chosen = _to_merge(now, rows, len(about) > 0)
        if now.contradicted.keys() - {*about.index}:
            # parts that contradict each other stay until all these runs have ended again
            chosen, about = [], about[~about.index.isin(list(now.contradicted))]
        elif now.contradicted:
            chosen = [*range(len(now.parts))]
        if chosen or len(about):
            new = rows[rows["id"].isin(about.index)].join(about, on="id")[RUNS.names]
            kept = _in_rows(now.runs[now.runs["part"].isin(chosen)], rows)
            write_part(now, chosen, stacked_runs([kept, new]), of_runs(records, about.index))
        _clean(results, folders & {*now.runs["id"], *about.index})
        return len(about)
    return 0


def _to_merge(now: Ended, rows: pd.DataFrame, more: bool) -> list[int]:
    """The indices of the parts to write as one, with `more` runs: small ones, and those of other rows."""
    parts = list(enumerate(now.parts))
    small = {i for i, part in parts if part.size < SMALL}
    old = {i for i, part in parts if _keys(part.runs) != _keys(_in_rows(part.runs, rows))}
    return sorted(small | old) if more or old or len(small) > 1 else []


def _keys(runs: pd.DataFrame) -> set[tuple[object, ...]]:
    return set(runs[["id", *ROW_LABELS]].itertuples(index=False, name=None))


def _in_rows(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Repeat each run for every row of the plan that contains it; unplanned runs keep their rows."""
    once = runs.drop_duplicates("id")
    planned = rows[["id", *ROW_LABELS]].merge(once.drop(columns=ROW_LABELS), on="id")
    others = runs[~runs["id"].isin(rows["id"])]
    return stacked_runs([planned[list(runs)], others])


def _clean(results: Path, ids: Collection[str]) -> None:
    """Remove the folders of runs that are in the tables, and what an interrupted compaction left."""
    for run_id in ids:
        folder = results / "runs" / run_id
        with suppress(OSError, Timeout), FileLock(folder / "lock", blocking=False):
            shutil.rmtree(folder, ignore_errors=True)
    folder = results / FOLDER
    orphans = {*folder.glob("records-*.parquet")} - {
        *map(records_file, folder.glob("runs-*.parquet"))
    }
    for path in list(folder.iterdir()):
        if is_temporary(path) or path in orphans:
            path.unlink(missing_ok=True)


def _folders(results: Path) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(results / "runs") as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                yield entry.name
