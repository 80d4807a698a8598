"""Content digests of the data files that runs read, listed in OUT/data/<digest>.json.

A file is not read again if a list in this results directory, or one that this machine made for a sibling
directory, has its size and modification time. The content of a folder is the names of the folders and
images in it, except names that begin with a dot.
"""

import hashlib
import json
import mimetypes
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from oodbench.files import write_whole
from oodbench.identity import Stamp, digest_of, sha256, stamp, unlike
from oodbench.results.schemas import DamagedFile, read_file

DATA = "data"
"""The folder of the lists in a results directory."""
LIST = f"{'[0-9a-f]' * 16}.json"
"""The name of a list."""
Entry = tuple[int, int, str]
"""The stamp and the SHA-256 of a file."""


@dataclass(frozen=True)
class Listing:
    """Files with their contents."""

    root: str
    """The folder that the names are relative to; no digest depends on it."""
    files: dict[str, Entry]
    machine: str = ""
    """The name of the machine that read the files."""

    @property
    def contents(self) -> list[tuple[str, str]]:
        """The names in order, each with its SHA-256."""
        return [(name, entry[2]) for name, entry in sorted(self.files.items())]

    @property
    def digest(self) -> str:
        """A digest of names and contents."""
        return digest_of("".join(f"{name}\t{sha}\n" for name, sha in self.contents).encode())

    @property
    def entries(self) -> dict[str, Entry]:
        """The entries by absolute path."""
        root = self.root.rstrip("/")
        return {f"{root}/{name}": entry for name, entry in self.files.items()}


LISTING = TypeAdapter(Listing)


class DataFiles:
    """The lists in a results directory."""

    def __init__(self, results: Path) -> None:
        self.folder = results / DATA
        self._read: dict[str, Listing | None] = {}

    def keep(self, paths: Iterable[Path]) -> str:
        """List files as they are now; returns the digest of the list."""
        stamps = _stamps({os.path.abspath(path) for path in paths})  # noqa: PTH100 (fast)
        known: dict[str, Entry] = {}
        for listing in self._lists():
            known |= listing.entries
            if not _changed(stamps, known):
                break
        folders = {os.path.dirname(path) for path in stamps}  # noqa: PTH120 (fast)
        return self._keep(_listed(stamps, known, os.path.commonpath(folders or "/")))

    def changed_files(self, digest: str) -> list[str]:
        """The names of files that differ from a list.

        Raises FileNotFoundError with what is missing: the list, or all of its files.
        """
        listing = self._listing(digest)
        if listing is None:
            raise FileNotFoundError(f"{DATA}/{digest}.json")
        known = listing.entries
        stamps = _stamps(known)
        if not stamps:
            raise FileNotFoundError(Path(os.path.commonpath(known)).name)
        now = _listed(stamps, known, listing.root)
        if now.files == listing.files:
            return []
        if now.digest == digest:
            self._keep(now)
        return unlike(listing.contents, now.contents)

    def differing(self, digest: str, other: str) -> list[str]:
        """The names of files in which two lists differ; the first list's own if one is missing."""
        one, two = self._listing(digest), self._listing(other)
        return unlike(one.contents, two.contents) if one and two else [f"{DATA}/{digest}.json"]

    def _lists(self) -> Iterator[Listing]:
        """The lists of this directory, then this machine's lists of sibling directories."""
        for folder in (self.folder, *self.folder.parent.parent.glob(f"*/{DATA}")):
            for listing in map(_read, folder.glob(LIST)):
                if listing and (folder == self.folder or listing.machine == platform.node()):
                    yield listing

    def _listing(self, digest: str) -> Listing | None:
        """The list with this digest, if it is here and whole."""
        if digest not in self._read:
            self._read[digest] = _read(self.folder / f"{digest}.json")
        return self._read[digest]

    def _keep(self, listing: Listing) -> str:
        """Write a list, unless it is there with these stamps; returns its digest."""
        digest = listing.digest
        there = self._listing(digest)
        if not there or (there.root, there.files) != (listing.root, listing.files):
            with suppress(OSError):  # a folder that cannot be written to is read again
                self.folder.mkdir(exist_ok=True)
                write_whole(self.folder / f"{digest}.json", json.dumps(asdict(listing)))
            self._read[digest] = listing
        return digest


def _read(path: Path) -> Listing | None:
    """The list in a file; None if it is missing or damaged."""
    listing = None
    with suppress(DamagedFile, OSError):
        listing = read_file(path, LISTING)
    return listing if listing and listing.digest == path.stem else None


def _stamps(paths: Iterable[str]) -> dict[str, Stamp]:
    """Stamps by path; missing files and folders are left out."""
    stamps = {}
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            stamps[path] = stamp(path)
    return stamps


def _changed(stamps: Mapping[str, Stamp], known: Mapping[str, Entry]) -> list[str]:
    """The files whose stamps differ from the known ones."""
    return [path for path, now in stamps.items() if known.get(path, ())[:2] != now]


def _listed(stamps: Mapping[str, Stamp], known: Mapping[str, Entry], root: str) -> Listing:
    """List the files with these stamps, reading only new and changed ones."""
    changed = _changed(stamps, known)
    with ThreadPoolExecutor() as pool:
        read = dict(zip(changed, pool.map(_content, changed), strict=True))
    start = len(root.rstrip("/")) + 1
    files = {
        path[start:]: (*now, read[path] if path in read else known[path][2])
        for path, now in sorted(stamps.items())
    }
    return Listing(root, files, platform.node())


def _content(path: str) -> str:
    """Hash the content of a file or folder; empty if unreadable."""
    if os.path.isdir(path):  # noqa: PTH112 (fast)
        with os.scandir(path) as entries:
            names = sorted(
                e.name for e in entries if e.name[0] != "." and (e.is_dir() or _is_image(e))
            )
        return hashlib.sha256("\n".join(names).encode()).hexdigest()
    with suppress(OSError):
        if os.path.isfile(path):  # noqa: PTH113 (fast); a pipe would never end
            return sha256(path)
    return ""


def _is_image(entry: "os.DirEntry[str]") -> bool:
    return (mimetypes.guess_type(entry.name)[0] or "").startswith("image/")
