"""Moves the runs that have ended from their folders into the tables of `oodbench.results.ended`.

The tables are on the disk before a folder is removed: a run may for a while stand in both, and counts once.
"""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
from filelock import FileLock, Timeout

from oodbench.files import is_temporary
from oodbench.results.directory import Results
from oodbench.results.ended import FOLDER, SMALL, Ended, ended, key_in, lock, write_part
from oodbench.results.read import read_folders
from oodbench.results.tables import stacked_runs

ROW = ["dataset_label", "label", "ceiling", "transductive", "reference"]
"""The columns of a run that say in which row it stands."""


def compact(directory: Results, patient: bool = True) -> int:
    """Move the planned runs that have ended into the tables; returns their number.

    The runs get the labels of the plan. Small parts are merged, and folders of runs that are in the tables
    removed. If another process is at it and `patient` is false, nothing is done. Raises OSError, as of a
    full disk, and UserError without a plan; what has ended is then where it was.
    """
    results, rows = directory.path, directory.plan()["rows"]
    with suppress(Timeout), lock(results, patient):
        now = ended(results)
        folders = set(_folders(results))
        waiting = [i for i in rows["id"].unique() if i in folders and i not in now]
        found = [i for i in waiting if (results / "runs" / i / "done.json").exists()]
        moved = read_folders(results, found).only_complete()
        left = now.contradicted.keys() - {*moved.ids}
        if left:  # what several parts say is kept until all these runs have ended again
            moved = moved.without(now.contradicted)
        chosen = _to_merge(now, rows, bool(moved.ids), left)
        if chosen or moved.ids:
            new = [(moved.runs(rows), moved.records())]
            write_part(now, chosen, new, set(), lambda runs: _in_rows(runs, rows))
        _clean(results, folders & {*now.runs["id"], *moved.ids})
        return len(moved.ids)
    return 0


def _to_merge(now: Ended, rows: pd.DataFrame, more: bool, left: Collection[str]) -> list[int]:
    """Return the indices of the parts to write as one, with `more` runs; none with a run of `left`."""
    small, old = [], []
    for i, part in enumerate(now.parts):
        runs = set(part.runs["id"])
        if runs.isdisjoint(left):
            torn = not runs.isdisjoint(now.contradicted)
            small += [i] * (torn or len(part.content) < SMALL)
            old += [i] * (not _has_rows(part.runs, rows))
    return sorted({*small, *old}) if more or old or len(small) > 1 else []


def _has_rows(runs: pd.DataFrame, rows: pd.DataFrame) -> bool:
    """Return whether runs of a part stand in the rows of the plan."""
    names = ["id", *ROW]
    wanted = set(rows.loc[rows["id"].isin(runs["id"]), names].itertuples(index=False, name=None))
    of_plan = runs.loc[runs["id"].isin(rows["id"]), names]
    return set(of_plan.itertuples(index=False, name=None)) == wanted


def _in_rows(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return runs in the rows that a plan has of them; a run that is not planned stays in its own."""
    once = runs.drop_duplicates("id")
    planned = rows[["id", *ROW]].merge(once.drop(columns=ROW), on="id")
    others = runs[~runs["id"].isin(rows["id"])]
    return stacked_runs([planned[list(runs)], others])


def _clean(results: Path, ids: Collection[str]) -> None:
    """Remove the folders of runs that are in the tables, and what an interrupted compaction left."""
    for run_id in ids:
        folder = results / "runs" / run_id
        with suppress(OSError, Timeout), FileLock(folder / "lock", blocking=False):
            shutil.rmtree(folder, ignore_errors=True)
    folder = results / FOLDER
    for path in list(folder.iterdir()):
        key = key_in(path.name, "records-")
        if is_temporary(path) or (key and not (folder / f"runs-{key}.parquet").exists()):
            path.unlink(missing_ok=True)


def _folders(results: Path) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(results / "runs") as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                yield entry.name
