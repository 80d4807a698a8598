"""Files and folders that are there whole or not at all, and files that can be read to their end.

Imports no torch.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from oodbench.errors import UserError

ROOM = 2**16
"""Bytes below which a disk counts as full."""


@contextmanager
def whole_file(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file so that `path` names all of it or what was there before.

    The block writes to a part file beside `path`, which then takes its name. An error in the block, or
    a full disk, removes the part and is raised. A `durable` file survives a power cut from the end of
    the block on. Errors name `path`, or its folder where that is missing, never the part.
    """
    part = part_of(path)
    try:
        with part.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        _name_what_is_wanted(error, part, path)
        raise
    if durable:
        _sync(path.parent)


def write_whole(path: Path, text: str, durable: bool = True) -> None:
    """Write a text as a `whole_file`."""
    with whole_file(path, durable) as file:
        file.write(text.encode())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a folder so that `path` names all of it or is not there.

    The block fills the folder that it is given, which then takes the name `path`, unless another
    process was first. An error in the block removes the folder and is raised. Errors name `path`, or the
    folder around it where that is missing.
    """
    part = part_of(path)
    try:
        part.mkdir()
    except OSError as error:
        _name_what_is_wanted(error, part, path)
        raise
    try:
        yield part
        for file in part.rglob("*"):
            _sync(file)
        if not path.is_dir():
            part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    _sync(path.parent)


def _name_what_is_wanted(error: BaseException, part: Path, path: Path) -> None:
    """Let an error of a part tell what the user knows: `path`, or its folder if there is none."""
    if isinstance(error, OSError) and error.filename == str(part):
        error.filename = str(path if path.parent.is_dir() else path.parent)


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """Whether an error came of a disk, or a quota, that has no room for more.

    Libraries that write say it in errors of their own: then the room left in `folder` tells.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__ or cause.__context__
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free < ROOM


def part_of(path: Path) -> Path:
    """A new name, hidden and beside `path`, for what is to become `path`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def is_part(path: Path) -> bool:
    """Whether the name is one of `part_of`: if nobody writes it any more, a kill has left it."""
    return path.name.startswith(".") and path.suffix == ".part"


def read_regular(path: Path, limit: int) -> bytes:
    """All bytes of a regular file of at most `limit` bytes.

    Raises UserError for a pipe, a device, a folder or a larger file, none of which is opened, and
    OSError as `open` does.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is no regular file")
    if found.st_size > limit:
        raise UserError(f"{path} has {found.st_size:,} bytes; more than {limit:,} are not read")
    with path.open("rb") as file:
        return file.read(limit)


def _sync(path: Path) -> None:
    """Put a file or the names in a folder on the disk, where its file system can."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
