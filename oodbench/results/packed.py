"""The files of ended runs in one file, OUT/packed.zip.

Its members have the names that the files had, such as `runs/<id>/run.json`: `unzip packed.zip` makes
the folders again. A run is packed unless its own folder holds records. What is read from a zip file is
compared with the checksum there.
"""

import os
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path

from oodbench.errors import UserError
from oodbench.files import open_regular
from oodbench.results.schemas import LARGEST_FILE, DamagedFile

NAME = "packed.zip"
FILES = ("done.json", "metrics.jsonl", "run.json")
"""The files of an ended run that never change again."""
UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),
)
"""The errors that zipfile, numpy and Arrow raise for files that are torn or something else."""


class Pack:
    """An open packed.zip."""

    def __init__(self, path: Path) -> None:
        """Raises DamagedFile if the file is no zip file."""
        self.path = path
        try:
            open_regular(path).close()
            self._archive = zipfile.ZipFile(path)
        except UNREADABLE as error:
            raise self._damaged(error) from None
        self._members = {info.filename: info for info in self._archive.infolist()}

    def _damaged(self, error: Exception) -> DamagedFile:
        if isinstance(error, UserError):
            return DamagedFile(str(error))
        reason = " ".join(str(error).split())[:160]
        return DamagedFile(f"{self.path} is damaged: {reason}")

    def ids(self) -> list[str]:
        """The ids of the runs of which a file is here."""
        return list(dict.fromkeys(name.split("/")[1] for name in self._members if "/" in name))

    def read(self, run_id: str, name: str) -> bytes | None:
        """The content of a run's file, or None if the run is not here; raises DamagedFile."""
        info = self._members.get(member(run_id, name))
        if info is None:
            if any(member(run_id, other) in self._members for other in FILES):
                raise DamagedFile(f"{self.path} is damaged: it lacks {name} of the run {run_id}")
            return None
        try:
            if info.file_size > LARGEST_FILE:
                raise ValueError(f"{info.filename} is too large")
            return self._archive.read(info)
        except UNREADABLE as error:
            raise self._damaged(error) from None

    def stamp(self, run_id: str) -> list[int] | None:
        """The stamp that distinguishes packed runs of one id; None unless all its files are here."""
        infos = [self._members.get(member(run_id, name)) for name in FILES]
        return [n for i in infos if i for n in (i.CRC, i.file_size)] if all(infos) else None


def member(run_id: str, name: str) -> str:
    """The name of a run's file in the pack."""
    return f"runs/{run_id}/{name}"


def open_pack(folder: Path) -> Pack | None:
    """The pack of a results directory, if it has one; raises DamagedFile for what is no zip file."""
    path = folder / NAME
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DamagedFile(f"{path}: {error.strerror}") from None
    # one for each process: a forked one would share the position in the file with its parent
    return _open(path, os.getpid(), status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4)
def _open(path: Path, process: int, *stamp: int) -> Pack:
    return Pack(path)
