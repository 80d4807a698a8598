"""Atomic writes of files and folders, and checks that files can be read to their end."""

import difflib
import errno
import glob
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from oodbench.errors import UserError

LFS = b"version https://git-lfs.github.com/spec/"
"""How a file begins that Git has not fetched from its store of large files."""
PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype )?html", re.IGNORECASE)
ARFF = re.compile(rb"\s*(%[^\n]*\n\s*)*@relation\s", re.IGNORECASE)
ROOM = 2**16
"""Bytes below which a disk counts as full."""


def other_than_data(file: Path) -> str:
    """What a file is instead of data, such as a web page or a pointer of Git LFS; else an empty text."""
    with file.open("rb") as stream:
        start = stream.read(2**12)
    if start.startswith(LFS):
        return "a pointer of Git LFS: `git lfs pull` fetches the file"
    if PAGE.match(start):
        return "a web page, perhaps a login: download the file again"
    if ARFF.match(start):
        return "in Weka's format ARFF: `scipy.io.arff.loadarff` reads it, save it as CSV"
    return "" if start else "empty"


def require_data(file: Path) -> None:
    """Raise UserError for a file without data, see `other_than_data`."""
    if other := other_than_data(file):
        raise UserError(f"{file} is {other}")


def nearest(path: Path) -> str:
    """A question after the file that a missing one may be, or nothing.

    It is a file of the same name one folder below, or the one in its folder whose name is nearest.
    """
    names = sorted(each.name for each in path.parent.iterdir()) if path.parent.is_dir() else []
    # a pattern, as it passes over folders that may not be read
    below = sorted(path.parent.glob(f"*/{glob.escape(path.name)}"))
    near = [f"{each.parent.name}/{path.name}" for each in below]
    near = near or difflib.get_close_matches(path.name, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


@contextmanager
def whole_file(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file atomically: `path` holds either the complete new content or the old.

    The block writes to a temporary file in the same folder, which is then renamed to `path`. An error in
    the block, or a full disk, removes the temporary file and is raised. A `durable` file survives a power
    cut once the block has ended. Errors name `path`, or its folder if the folder is missing.
    """
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        _name_target(error, temporary, path)
        raise
    if durable:
        _sync(path.parent)


def write_whole(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Write a text, in UTF-8, or bytes to a file atomically, see `whole_file`."""
    with whole_file(path, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_folder(path: Path, durable: bool = True) -> Iterator[Path]:
    """Create a folder atomically: `path` either holds everything or does not exist.

    The block fills a temporary folder, which is then renamed to `path` unless another process was
    first. An error in the block removes the temporary folder and is raised. A `durable` folder survives a
    power cut once the block has ended. Errors name `path`, or its parent folder if the parent is missing.
    """
    temporary = temporary_name(path)
    try:
        temporary.mkdir()
    except OSError as error:
        _name_target(error, temporary, path)
        raise
    try:
        yield temporary
        for file in temporary.rglob("*") if durable else ():
            _sync(file)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if durable:
        _sync(path.parent)


def _name_target(error: BaseException, temporary: Path, path: Path) -> None:
    """Let an error of a temporary file name what the user knows: `path`, or its missing folder.

    Errors of writing, such as a full disk, name no file by themselves.
    """
    if isinstance(error, OSError) and error.filename in (None, str(temporary)):
        error.filename = str(path if path.parent.is_dir() else path.parent)


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """Whether an error was caused by a full disk or an exhausted quota.

    Some libraries raise other errors than OSError; the free space at `folder` then decides.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__ or cause.__context__
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free < ROOM


def temporary_name(path: Path) -> Path:
    """A new hidden name in the folder of `path`, for a file or folder to be renamed to `path`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def is_temporary(path: Path) -> bool:
    """Whether the name is from `temporary_name`, as left behind by an interrupted write."""
    return path.name.startswith(".") and path.suffix == ".part"


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises UserError for a pipe, a device or a folder, without opening it, and OSError as `open` does.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise UserError(f"{path} is not a regular file")
    return path.open("rb")


def read_regular(path: Path, limit: int) -> bytes:
    """All bytes of a file of at most `limit` bytes.

    Raises as `open_regular`, and UserError for a larger file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UserError(f"{path} has {size:,} bytes; more than {limit:,} are not read")
        return file.read(size)


def _sync(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
