"""Footnotes of tables, with their short versions for the screen, and findings on data."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHOWN = 6
"""Of more findings of one kind these are shown, and the others are counted."""


@dataclass(frozen=True)
class Note:
    """A sentence on a table, with its footnote on a screen."""

    text: str
    brief: str
    """One line of at most 79 letters; an empty one is left out of screens."""

    def __str__(self) -> str:
        return self.text


AnyNote = Note | str
"""A plain string is shown in full everywhere."""


def footnotes(notes: Iterable[AnyNote]) -> list[AnyNote]:
    """Footnotes of sentences, without those that screens leave out."""
    lines = [note.brief if isinstance(note, Note) else note for note in notes]
    return [line for line in lines if line]


@dataclass(frozen=True)
class Finding:
    """A fact about a dataset that an audit finds, see `oodbench.data.audit`."""

    kind: str
    """In two words, such as `shared groups`."""
    environments: tuple[str, ...]
    """The environment that it is about, then those that it is compared with."""
    counts: Mapping[str, float]
    """The numbers behind it."""
    example: str
    """One case of it, such as the name of a group; empty if there is no name."""
    sentence: str

    @property
    def changes_meaning(self) -> bool:
        """Whether a number means something else because of it, so that plans say it."""
        return self.kind not in ("equal inputs", "small class")


def sentences(findings: Iterable[Finding]) -> list[str]:
    """What findings say, kind by kind; of many of one kind the first, and how many there are."""
    kinds = defaultdict[str, list[str]](list)
    for finding in findings:
        kinds[finding.kind].append(finding.sentence)
    shown = [(each[:SHOWN], len(each) - SHOWN, kind) for kind, each in kinds.items()]
    return [s for some, n, kind in shown for s in (*some, *[f"and {n} more ({kind})"] * (n > 0))]
