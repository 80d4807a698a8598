"""Stale runs, whose code or data have changed since training, and sentences that describe them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from oodbench.identity import (
    Code,
    Digests,
    changed_files,
    combined,
    differing,
    is_of_package,
)
from oodbench.notes import AnyNote, Note
from oodbench.results.data_files import DataFiles
from oodbench.results.run_spec import COMPLETE
from oodbench.version import __version__

NAMED = 3
"""The number of files that a sentence names."""
DIGESTED = {
    "method": "algorithm",
    "network": "network",
    "dataset": "dataset",
    "files": "dataset_label",
}
"""The digests of a run, and the field of the run that names what each is of."""
Subject = tuple[str, str]
"""`method`, `network`, `dataset` or `files`, and the name of that method, network or dataset."""


class Trained(NamedTuple):
    """A run that has been trained, at least in part."""

    id: str
    algorithm: str
    network: str
    dataset: str
    dataset_label: str
    provenance: Mapping[str, Any]
    directory: str
    """The results directory."""


@dataclass(frozen=True)
class Stale:
    """Runs that are stale for one reason, or whose code or data are not here to compare."""

    ids: tuple[str, ...]
    sentence: str
    """The reason, without a full stop."""
    is_known: bool = True
    """Whether there is code or data here to compare the runs with."""


@dataclass
class _Variant:
    """Runs of a directory with the same digests of a subject, both as recorded and as they are now."""

    recorded: Code | str
    now: Code | str | None
    files: DataFiles
    ids: list[str] = field(default_factory=list)

    def changed(self) -> list[str]:
        """The names of the files that have changed; raises as `changed_files` does."""
        recorded, now = self.recorded, self.now
        if isinstance(recorded, dict):
            return differing(recorded, now) if isinstance(now, dict) else changed_files(recorded)
        if isinstance(now, str):
            return [] if now == recorded else self.files.differing(recorded, now)
        return self.files.changed_files(recorded)

    @property
    def version(self) -> str:
        """One digest of the recorded code or data."""
        return self.recorded if isinstance(self.recorded, str) else combined(self.recorded)


def stale(runs: Iterable[Trained], here: Mapping[str, Digests] | None = None) -> list[Stale]:
    """The stale runs by reason.

    `here` has, by id, the digests of the code and data with which a run would be trained now; for other
    runs the recorded files are read again. Of a run of another version of the package, only code and data
    that are not the package's own are compared. Runs of another program are not compared.
    """
    totals: Counter[Subject] = Counter()
    variants: dict[Subject, dict[object, _Variant]] = defaultdict(dict)
    versions: dict[str, list[str]] = defaultdict(list)
    files = cache(lambda directory: DataFiles(Path(directory)))
    alike: dict[object, list[Trained]] = defaultdict(list)  # runs share what was read once
    known, none = here or {}, dict[str, Any]()
    for run in runs:
        alike[id(run.provenance), id(known.get(run.id, none)), *run[1:5], run.directory].append(run)
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
            if before is None or (version != __version__ and is_of_package(before)):
                continue
            variant = _Variant(before, present, files(run.directory))
            key = repr((before, present, run.directory))
            variants[subject].setdefault(key, variant).ids.extend(ids)
    reasons = [
        Stale(
            tuple(ids),
            f"oodbench {v} trained {len(ids)} of {total} runs, and {__version__} is here",
        )
        for total in [sum(map(len, versions.values()))]
        for v, ids in versions.items()
        if v != __version__
    ]
    for subject, of_subject in variants.items():
        reasons += _reasons(subject, of_subject.values(), totals[subject])
    return reasons


def _reasons(subject: Subject, variants: Iterable[_Variant], total: int) -> Iterator[Stale]:
    """Why runs of a method, a network or a dataset are stale, or cannot be compared."""
    found: dict[bool, list[_Variant]] = {True: [], False: []}
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for variant in variants:
        try:
            files, is_known = variant.changed(), True
        except FileNotFoundError as error:
            files, is_known = [str(error)], False
        names[is_known].update(files)
        found[is_known] += [variant] * bool(files)
    kind, name = subject
    what = f"The data of {name} have" if kind == "files" else f"{name} has"
    for is_known, several in found.items():
        ids = tuple(i for variant in several for i in variant.ids)
        named = _named(names[is_known])
        sentence = f"{what} changed since {len(ids)} of its {total} runs were trained ({named})"
        if not is_known:
            sentence = f"{named} is gone: {len(ids)} runs of {name} cannot be compared with it"
        if (count := len({variant.version for variant in several})) > 1:
            sentence += f"; they are of {count} versions of it"
        if ids:
            yield Stale(ids, sentence, is_known)


def _named(files: Collection[str]) -> str:
    first = ", ".join(sorted(files)[:NAMED])
    return first + (f" and {len(files) - NAMED} others" if len(files) > NAMED else "")


def stale_runs(runs: pd.DataFrame) -> list[Stale]:
    """The reasons why complete runs, as `joined` has them, are stale."""
    if runs.empty:
        return []
    complete = runs[runs["state"].isin(COMPLETE)]
    return stale(
        map(Trained._make, complete[list(Trained._fields)].itertuples(index=False, name=None))
    )


def stale_notes(runs: pd.DataFrame) -> tuple[AnyNote, ...]:
    """A sentence for each of the reasons of `stale_runs`."""
    return tuple(
        f"Stale: {reason.sentence}."
        if reason.is_known
        else Note(f"{reason.sentence}.", f"{reason.sentence.partition(' (')[0]}.")
        for reason in stale_runs(runs)
    )
