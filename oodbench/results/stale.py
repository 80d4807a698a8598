"""Stale runs, whose code or data have changed since training, and lists of the data files of runs.

OUT/data/<digest>.json lists data files with their SHA-256. A file is not read again if a list in this
results directory, or in a neighbouring one, has its size and modification time. The content of a folder is
the names of its folders and images, except names that begin with a dot.
"""

import hashlib
import json
import mimetypes
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from oodbench import identity
from oodbench.errors import some
from oodbench.files import write_whole
from oodbench.identity import Code, Digests, Stamp, combined, digest_of, sha256, stamp, unlike
from oodbench.notes import AnyNote, Note
from oodbench.results.directory import Directory
from oodbench.results.ended import ended
from oodbench.results.run_spec import COMPLETE, RunSpec, RunStatus
from oodbench.results.schemas import DamagedFile, read_file
from oodbench.version import __version__

if TYPE_CHECKING:
    import pandas as pd

DATA = "data"
"""The folder of lists in a results directory."""
LIST = f"{'[0-9a-f]' * 16}.json"
"""The file name of a list, as a glob pattern."""
Entry = tuple[int, int, str]
"""The size, modification time and SHA-256 of a file."""


@dataclass(frozen=True)
class Listing:
    """A list of files with digests of their contents."""

    root: str
    """The folder that names are relative to; digests do not depend on it."""
    files: dict[str, Entry]

    @property
    def contents(self) -> list[tuple[str, str]]:
        """The sorted names, each with its SHA-256."""
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
        """The names of files in which two lists differ; the name of the first list if either is missing."""
        one, two = self._listing(digest), self._listing(other)
        return unlike(one.contents, two.contents) if one and two else [f"{DATA}/{digest}.json"]

    def _lists(self) -> Iterator[Listing]:
        for folder in (self.folder, *self.folder.parent.parent.glob(f"*/{DATA}")):
            yield from filter(None, map(_read, folder.glob(LIST)))

    def _listing(self, digest: str) -> Listing | None:
        return _read(self.folder / f"{digest}.json")

    def _keep(self, listing: Listing) -> str:
        digest = listing.digest
        there = self._listing(digest)
        if not there or (there.root, there.files) != (listing.root, listing.files):
            with suppress(OSError):  # a folder that cannot be written to is read again
                self.folder.mkdir(exist_ok=True)
                write_whole(self.folder / f"{digest}.json", json.dumps(asdict(listing)))
        return digest


def _read(path: Path) -> Listing | None:
    listing = None
    with suppress(DamagedFile, OSError):
        listing = read_file(path, LISTING)
    return listing if listing and listing.digest == path.stem else None


def _stamps(paths: Iterable[str]) -> dict[str, Stamp]:
    stamps = {}
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            stamps[path] = stamp(path)
    return stamps


def _changed(stamps: Mapping[str, Stamp], known: Mapping[str, Entry]) -> list[str]:
    return [path for path, now in stamps.items() if known.get(path, ())[:2] != now]


def _listed(stamps: Mapping[str, Stamp], known: Mapping[str, Entry], root: str) -> Listing:
    changed = _changed(stamps, known)
    with ThreadPoolExecutor() as pool:
        read = dict(zip(changed, pool.map(_content, changed), strict=True))
    start = len(root.rstrip("/")) + 1
    files = {
        path[start:]: (*now, read[path] if path in read else known[path][2])
        for path, now in sorted(stamps.items())
    }
    return Listing(root, files)


def _content(path: str) -> str:
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


NAMED = 3
"""The number of files that a sentence names."""
DIGESTED = {
    "method": "algorithm",
    "network": "network",
    "dataset": "dataset",
    "files": "dataset_label",
}
"""The digests of a run, and the field of the run with the name of the subject of each."""
Subject = tuple[str, str]
"""`method`, `network`, `dataset` or `files`, and the name of that method, network or dataset."""
Variant = tuple[Code | str, Code | str | None, str]
"""The digest of a subject as recorded, its digest now, and the results directory."""


@dataclass(frozen=True)
class Stale:
    """Runs that are stale for one reason, or that cannot be compared as code or data are missing."""

    ids: tuple[str, ...]
    sentence: str
    """The reason, without a full stop."""
    is_known: bool = True
    """Whether the code or data is here, so that the runs are known to be stale."""


def _changed_files(recorded: Code | str, now: Code | str | None, files: DataFiles) -> list[str]:
    """The names of changed files; raises FileNotFoundError with the name of what is missing."""
    if isinstance(recorded, dict):
        if isinstance(now, dict):
            return identity.differing(recorded, now)
        return identity.changed_files(recorded)
    if isinstance(now, str):
        return [] if now == recorded else files.differing(recorded, now)
    return files.changed_files(recorded)


def stale(runs: Any, here: Mapping[str, Digests] | None = None) -> list[Stale]:
    """The stale runs by reason.

    `runs` is a data frame with `id`, `provenance`, `directory` and the columns that DIGESTED names. `here`
    has, by id, the digests of the code and data with which a run would be trained now; the recorded files
    of other runs are read again. If another version of the package trained a run, only the user's code and
    data are compared. Imported runs of other programs are not compared.
    """
    totals: Counter[Subject] = Counter()
    variants: dict[Subject, dict[str, tuple[Variant, list[str]]]] = defaultdict(dict)
    versions: dict[str, list[str]] = defaultdict(list)
    alike: dict[object, list[Any]] = defaultdict(list)  # runs of the same digests are read once
    known, none = here or {}, dict[str, Any]()
    columns = ["id", *DIGESTED.values(), "directory", "provenance"]
    for run in runs[columns].itertuples(index=False):
        alike[id(run.provenance), id(known.get(run.id, none)), *run[1:-1]].append(run)
    for run, *others in alike.values():
        made_by, ids = run.provenance, [run.id, *(other.id for other in others)]
        if not made_by or "code" in made_by:
            continue
        version = str(made_by.get("oodbench", "of an unknown version"))
        versions[version] += ids
        recorded: Mapping[str, Any] = made_by.get("digests") or {}
        now: Mapping[str, Any] = known.get(run.id, none)
        for kind, column in DIGESTED.items():
            subject = kind, getattr(run, column)
            totals[subject] += len(ids)
            before, present = recorded.get(kind), now.get(kind)
            if before is None or (version != __version__ and identity.is_of_package(before)):
                continue
            variant = before, present, run.directory
            variants[subject].setdefault(repr(variant), (variant, []))[1].extend(ids)
    total, reasons = sum(map(len, versions.values())), list[Stale]()
    for v in [v for v in versions if v != __version__]:
        count = f"{len(versions[v])} of {total} runs"
        sentence = f"oodbench {v} trained {count}, and {__version__} is here"
        reasons.append(Stale(tuple(versions[v]), sentence))
    for subject, of_subject in variants.items():
        reasons += _reasons(subject, of_subject.values(), totals[subject])
    return reasons


def stale_in(
    results: Directory,
    specs: Mapping[str, RunSpec],
    statuses: Mapping[str, RunStatus],
    here: Mapping[str, Digests] | None = None,
) -> list[Stale]:
    """The reasons why runs of a directory with a result or a checkpoint are stale; see `stale`."""
    import pandas as pd

    from oodbench.results.parquet import spec_columns

    begun, known = list[str](), ended(results.path).provenances
    for run_id in specs:
        state = statuses[run_id].state
        if state.complete or (state.at_rest and results.run(run_id).checkpoint.exists()):
            begun.append(run_id)
    runs = spec_columns([specs[i] for i in begun], begun)
    runs["dataset_label"] = [specs[i].dataset_name for i in begun]
    runs["provenance"] = [known[i] if i in known else results.run(i).made_by() for i in begun]
    return stale(pd.DataFrame({**runs, "directory": str(results.path)}), here)


def _reasons(
    subject: Subject, variants: Iterable[tuple[Variant, list[str]]], total: int
) -> Iterator[Stale]:
    """Why runs of a method, a network or a dataset are stale, or cannot be compared."""
    ids: dict[bool, list[str]] = {True: [], False: []}
    names: dict[bool, set[str]] = {True: set(), False: set()}
    versions: dict[bool, set[str]] = {True: set(), False: set()}
    for (recorded, now, directory), of_variant in variants:
        try:
            files = _changed_files(recorded, now, DataFiles(Path(directory)))
            is_known = True
        except FileNotFoundError as error:
            files, is_known = [str(error)], False
        if files:
            ids[is_known] += of_variant
            names[is_known].update(files)
            versions[is_known].add(recorded if isinstance(recorded, str) else combined(recorded))
    kind, name = subject
    what = f"The data of {name} have" if kind == "files" else f"{name} has"
    for is_known in (known for known in ids if ids[known]):
        count, named = len(ids[is_known]), some(sorted(names[is_known]), NAMED)
        sentence = f"{what} changed since {count} of its {total} runs were trained ({named})"
        if not is_known:
            sentence = f"{named} is gone: {count} runs of {name} cannot be compared with it"
        if len(versions[is_known]) > 1:
            sentence += f"; they are of {len(versions[is_known])} versions of it"
        yield Stale(tuple(ids[is_known]), sentence, is_known)


def stale_runs(runs: "pd.DataFrame") -> list[Stale]:
    """Why complete runs are stale."""
    return stale(runs[runs["state"].isin(COMPLETE)])


def stale_notes(runs: "pd.DataFrame") -> tuple[AnyNote, ...]:
    """`stale_runs` as notes."""
    return tuple(
        f"Stale: {reason.sentence}."
        if reason.is_known
        else Note(f"{reason.sentence}.", f"{reason.sentence.partition(' (')[0]}.")
        for reason in stale_runs(runs)
    )
