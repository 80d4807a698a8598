"""Files made on this machine: a manifest, and processes that resume after an interruption."""

import json
import multiprocessing
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from filelock import FileLock, Timeout

from oodbench.data.streams import progress
from oodbench.datasets import FileDataset
from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.identity import md5
from oodbench.orphans import end_with_parent

MANIFEST = "manifest.json"


class Manifest(TypedDict):
    """The settings of a set and the md5 of each file; no files until the set is complete."""

    settings: dict[str, Any]
    checksums: dict[str, str]


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the set in `folder`; raises UserError if it is damaged."""
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text())
        return Manifest(settings={**values["settings"]}, checksums={**values["checksums"]})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: it is not the manifest of a set") from error


def write_manifest(folder: Path, settings: Any, files: Sequence[str] = ()) -> None:
    """Write the manifest of `settings`, a dataclass, and of `files` in the folder, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    checksums = {file: md5(folder / file) for file in files}
    manifest = Manifest(settings=asdict(settings), checksums=checksums)
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


class MadeDataset(FileDataset):
    """A dataset whose files `python -m oodbench.data make` makes in pieces, by playing a game.

    Pieces that are there are kept, so that an interrupted call continues, except those that the checksums
    of a complete set find damaged.
    """

    reads_parts: ClassVar[bool] = False
    """Whether files that were made with larger numbers can be used."""

    @property
    @abstractmethod
    def folder(self) -> str:
        """The folder of the set under the data directory."""

    @property
    @abstractmethod
    def settings(self) -> Any:
        """The dataclass that determines the contents of the set."""

    @property
    @abstractmethod
    def pieces(self) -> Mapping[Any, Sequence[str]]:
        """The files of each piece, by their paths in the folder."""

    @abstractmethod
    def writer(self, folder: Path) -> Callable[[Any], None]:
        """A function that makes one of the pieces in `folder`, to be called in other processes.

        Raises UserError if this machine cannot make it.
        """

    @property
    def checksums(self) -> Mapping[str, str]:
        """The md5 of each file that is read, by the set's manifest; raises UserError for other sets."""
        path = self.file(f"{self.folder}/{MANIFEST}")
        manifest = read_manifest(path.parent)
        if not manifest["checksums"]:
            command = self.command(self.data_dir)
            raise UserError(f"{path} is of an unfinished set; `{command}` continues it")
        for name, wanted in asdict(self.settings).items():
            made = manifest["settings"].get(name)
            is_larger = self.reads_parts and isinstance(made, int) and made >= wanted
            if made != wanted and not is_larger:
                raise UserError(f"{path}: the set has {name} {made!r}, not {wanted!r}")
        files = (file for of_piece in self.pieces.values() for file in of_piece)
        return {f"{self.folder}/{file}": manifest["checksums"][file] for file in files}

    def make(self, data_dir: Path, source: Path | None, workers: int) -> None:
        """Make what is missing; raises UserError if the folder has another set, or it is being made."""
        if source is not None:
            raise UserError(f"{self.name} is made by playing, and not --from a file")
        folder, pieces, settings = data_dir / self.folder, self.pieces, self.settings
        write = self.writer(folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(folder / ".lock", timeout=0):
                if (folder / MANIFEST).is_file():
                    _remove_damaged(folder, asdict(settings))
                write_manifest(folder, settings)
                missing = [p for p in pieces if not all((folder / f).is_file() for f in pieces[p])]
                if missing:
                    _fill(missing, write, workers, self.name, len(pieces))
                files = [file for of_piece in pieces.values() for file in of_piece]
                write_manifest(folder, settings, files)
        except Timeout as error:
            raise UserError(f"another process makes data in {folder}") from error


def _remove_damaged(folder: Path, settings: Mapping[str, Any]) -> None:
    known = read_manifest(folder)
    made = known["settings"]
    unlike = [k for k in {**settings, **made} if made.get(k) != settings.get(k)]
    if unlike:
        what = ", ".join(
            f"{name} {made.get(name)!r}, not {settings.get(name)!r}" for name in unlike
        )
        raise UserError(f"{folder} holds another set: {what}")
    for file, checksum in known["checksums"].items():
        if (folder / file).is_file() and md5(folder / file) != checksum:
            (folder / file).unlink()


def _fill(
    missing: Sequence[Any], write: Callable[[Any], None], workers: int, title: str, total: int
) -> None:
    order = random.Random(0).sample(
        missing, len(missing)
    )  # mixed, for the estimate of the time left
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
