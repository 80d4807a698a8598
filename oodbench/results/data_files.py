"""The files that examples come from, by content, as OUT/data/<digest>.json lists them.

A file whose size and time of change are those in a list of this results directory, or in one that this
machine made beside it, is not read again. The content of a folder is the names of the folders and images in
it, without those that begin with a dot.
"""

import hashlib
import json
import mimetypes
import os
import platform
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from oodbench.files import write_whole
from oodbench.results.schemas import DamagedFile, read_file

DATA = "data"
"""The folder of the lists in a results directory."""
LIST = f"{'[0-9a-f]' * 16}.json"
"""The name of a list."""
Stamp = tuple[int, int]
"""The size and the time of change of a file, in nanoseconds."""
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
    def digest(self) -> str:
        """A digest of names and contents."""
        lines = "".join(f"{name}\t{entry[2]}\n" for name, entry in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()[:16]

    def differing(self, other: "Listing") -> list[str]:
        """Return the names of files that only one of the two lists, or that have other contents."""
        one, two = ({(name, e[2]) for name, e in x.files.items()} for x in (self, other))
        return sorted({name for name, _ in one ^ two})


LISTING = TypeAdapter(Listing)


def _stamps(paths: Iterable[str]) -> dict[str, Stamp]:
    """Return the sizes and times of change of files and folders; those that are missing are left out."""
    stamps: dict[str, Stamp] = {}
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            stat = os.stat(path)  # noqa: PTH116 (fast)
            stamps[path] = stat.st_size, stat.st_mtime_ns
    return stamps


def _listed(stamps: Mapping[str, Stamp], known: Mapping[str, Entry], root: str) -> Listing:
    """List the files with these stamps; a file that `known` has with the same stamp is not read."""
    changed = [path for path, stamp in stamps.items() if known.get(path, ())[:2] != stamp]
    with ThreadPoolExecutor() as pool:
        read = dict(zip(changed, pool.map(_sha256, changed), strict=True))
    start = len(root.rstrip("/")) + 1
    files = {
        path[start:]: (*stamp, read[path] if path in read else known[path][2])
        for path, stamp in sorted(stamps.items())
    }
    return Listing(root, files, platform.node())


def _sha256(path: str) -> str:
    """Return the hash of what a file or folder holds; empty for what cannot be read."""
    if os.path.isdir(path):  # noqa: PTH112 (fast)
        with os.scandir(path) as entries:
            names = sorted(
                e.name for e in entries if e.name[0] != "." and (e.is_dir() or _is_image(e))
            )
        return hashlib.sha256("\n".join(names).encode()).hexdigest()
    if not os.path.isfile(path):  # noqa: PTH113 (fast); a pipe would never end
        return ""
    with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 (fast)
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def _is_image(entry: "os.DirEntry[str]") -> bool:
    return (mimetypes.guess_type(entry.name)[0] or "").startswith("image/")


class DataFiles:
    """The lists in a results directory."""

    def __init__(self, results: Path) -> None:
        self.folder = results / DATA
        self._read: dict[str, Listing | None] = {}

    def keep(self, paths: Iterable[Path]) -> str:
        """List files as they are now; returns the digest of the list.

        A file is not read again either if this machine has listed it for a results directory beside.
        """
        stamps = _stamps({os.path.abspath(path) for path in paths})  # noqa: PTH100 (fast)
        known: dict[str, Entry] = {}
        for folder in (self.folder, *self.folder.parent.parent.glob(f"*/{DATA}")):
            for path in folder.glob(LIST):
                listing = _read(path)
                if listing and (folder == self.folder or listing.machine == platform.node()):
                    entries = _entries(listing)
                    if _have_stamps(entries, stamps):
                        return self._kept(listing)
                    known |= entries
        folders = {os.path.dirname(path) for path in stamps}  # noqa: PTH120 (fast)
        return self._kept(_listed(stamps, known, os.path.commonpath(folders or "/")))

    def listing(self, digest: str) -> Listing | None:
        """Return the list with this digest, if it is here and whole."""
        if digest not in self._read:
            self._read[digest] = _read(self.folder / f"{digest}.json")
        return self._read[digest]

    def changed_files(self, digest: str) -> list[str]:
        """Return the names of files that are no longer what a list says.

        Raises FileNotFoundError with what is missing if there is no such list, or none of its files.
        """
        listing = self.listing(digest)
        if listing is None:
            raise FileNotFoundError(f"{DATA}/{digest}.json")
        known = _entries(listing)
        stamps = _stamps(known)
        if not stamps:
            raise FileNotFoundError(Path(os.path.commonpath(known)).name)
        if _have_stamps(known, stamps):
            return []
        now = _listed(stamps, known, listing.root)
        if now.digest == digest:
            self._kept(now)
        return listing.differing(now)

    def differing(self, digest: str, other: str) -> list[str]:
        """Return the names of files in which two lists differ; the first list's own if one is missing."""
        one, two = self.listing(digest), self.listing(other)
        return one.differing(two) if one and two else [f"{DATA}/{digest}.json"]

    def _kept(self, listing: Listing) -> str:
        """Write a list, unless it is there as it is; returns its digest."""
        digest = listing.digest
        if self.listing(digest) != listing:
            with suppress(OSError):  # a folder that cannot be written to is read again
                self.folder.mkdir(exist_ok=True)
                write_whole(self.folder / f"{digest}.json", json.dumps(asdict(listing)))
            self._read[digest] = listing
        return digest


def _read(path: Path) -> Listing | None:
    """Return the list in a file; None if it is missing or damaged."""
    listing = None
    with suppress(DamagedFile, OSError):
        listing = read_file(path, LISTING)
    return listing if listing and listing.digest == path.stem else None


def _have_stamps(entries: Mapping[str, Entry], stamps: Mapping[str, Stamp]) -> bool:
    """Return whether the entries are of the same files, with the same stamps."""
    return len(entries) == len(stamps) and all(
        entry[:2] == stamps.get(path) for path, entry in entries.items()
    )


def _entries(listing: Listing) -> dict[str, Entry]:
    """Return the entries by absolute path."""
    root = listing.root.rstrip("/")
    return {f"{root}/{name}": entry for name, entry in listing.files.items()}
