"""Pack the ended runs of a results directory into one file."""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from zipfile import ZIP_DEFLATED, ZipFile

from filelock import Timeout

from oodbench.files import temporary_name, whole_file
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.packed import FILES, NAME, member, open_pack


@dataclass(frozen=True)
class Packed:
    """The result of `pack`."""

    moved: int
    """The number of runs that were folders before."""
    runs: int
    """The number of all runs in the pack."""
    left: int
    """The number of planned runs that are not in it."""


def pack(results: Results) -> Packed:
    """Move the ended runs into packed.zip, beside those that are there.

    A run that keeps weights, predictions or a checkpoint stays a folder. A kill at any instant loses
    nothing: a folder goes only when the new pack is on the disk. Raises DamagedFile for a damaged pack.
    """
    with results.plan_lock():
        planned = results.plan()["runs"]
        before = open_pack(results.path)
        kept = {} if before is None else dict.fromkeys(before.ids(), before)
        moved = {i: run for i in planned if _can_be_moved(run := results.run(i))}
        if moved:
            with (
                whole_file(results.path / NAME) as file,
                ZipFile(file, "w", ZIP_DEFLATED) as archive,
            ):
                for run_id in {**kept, **moved}:
                    source = moved[run_id].read if run_id in moved else None
                    for name in FILES:
                        content = source(name) if source else kept[run_id].read(run_id, name)
                        if content is not None:
                            archive.writestr(member(run_id, name), content)
            for run in moved.values():
                _remove(run)
        in_pack = {**kept, **moved}
        return Packed(len(moved), len(in_pack), sum(i not in in_pack for i in planned))


def _can_be_moved(run: RunDirectory) -> bool:
    """Whether a run has ended well and its folder holds what a pack does, and nothing else."""
    if not run.path.is_dir():
        return False
    names = {path.name for path in run.path.iterdir()}
    return names - {"lock"} == {*FILES} and run.state().complete


def _remove(run: RunDirectory) -> None:
    """Remove the folder of a run unless it is no longer what is in the pack."""
    results = open_pack(run.path.parent.parent)
    with suppress(Timeout), run.lock():
        if results is not None and results.read(run.id, "done.json") == run.read("done.json"):
            gone = run.path.rename(temporary_name(run.path))
            shutil.rmtree(gone)
