"""Sets of files made on this machine: a manifest, and processes that resume after an interruption."""

import json
import multiprocessing
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import FileLock, Timeout

from oodbench.data.streams import progress
from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.identity import md5
from oodbench.orphans import end_with_parent

MANIFEST = "manifest.json"
S = TypeVar("S")
P = TypeVar("P")


@dataclass(frozen=True)
class Manifest(Generic[S]):
    """The settings of a set and the md5 of each file; no files until the set is complete."""

    settings: S
    """An instance of a dataclass."""
    checksums: Mapping[str, str]


def read_manifest(folder: Path, kind: type[S]) -> Manifest[S]:
    """The manifest of the set in `folder`, whose settings are a `kind`; raises UserError if damaged."""
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text())
        return Manifest(kind(**values["settings"]), dict(values["checksums"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: it is not the manifest of a set") from error


def write_manifest(folder: Path, manifest: Manifest[Any]) -> None:
    """Write the manifest, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")


def finished_set(path: Path, kind: type[S], command: str) -> Manifest[S]:
    """The manifest at `path` of a complete set; raises UserError, with the `command` that makes it."""
    manifest = read_manifest(path.parent, kind)
    if not manifest.checksums:
        raise UserError(f"{path} is of an unfinished set; `{command}` continues it")
    return manifest


def make_set(
    folder: Path,
    settings: object,
    pieces: Mapping[P, Sequence[str]],
    write: Callable[[P], None],
    workers: int,
    title: str,
) -> None:
    """Make the set that `settings`, a dataclass, describe in `folder`, in `workers` processes.

    A call of `write` makes one of the `pieces`, which name their files. Existing pieces are kept, so that
    an interrupted call continues, except those that the checksums of a complete set find damaged. Raises
    UserError if another set is there or being made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            if (folder / MANIFEST).is_file():
                known = read_manifest(folder, type(settings))
                if known.settings != settings:
                    what = f"{known.settings}, not {settings}"
                    raise UserError(f"{folder} holds another set: {what}")
                for file, checksum in known.checksums.items():
                    if (folder / file).is_file() and md5(folder / file) != checksum:
                        (folder / file).unlink()
            write_manifest(folder, Manifest(settings, {}))
            missing = [p for p in pieces if not all((folder / f).is_file() for f in pieces[p])]
            if missing:
                _fill(missing, write, workers, title, len(pieces))
            files = [file for of_piece in pieces.values() for file in of_piece]
            write_manifest(folder, Manifest(settings, {file: md5(folder / file) for file in files}))
    except Timeout as error:
        raise UserError(f"another process makes data in {folder}") from error


def _fill(
    missing: Sequence[P], write: Callable[[P], None], workers: int, title: str, total: int
) -> None:
    order = random.Random(0).sample(missing, len(missing))  # mixed, for the time left
    context = multiprocessing.get_context("spawn")
    with progress() as bar, ProcessPoolExecutor(workers, context, end_with_parent) as pool:
        row = bar.add_task(title, total=total, completed=total - len(missing))
        try:
            for future in as_completed([pool.submit(write, piece) for piece in order]):
                future.result()
                bar.advance(row)
        except BrokenProcessPool as error:
            raise UserError("a process died; the same command continues from here") from error
        finally:
            pool.shutdown(cancel_futures=True)
