"""Footnotes of tables, with their short versions for the screen, and findings on data."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SHOWN = 6
"""The most findings of one kind that are shown; the others are counted."""


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


@dataclass(frozen=True)
class Finding:
    """A fact about a dataset that an audit finds, see `oodbench.data.audit`."""

    kind: str
    """In two words, such as `shared groups`."""
    environments: tuple[str, ...]
    """The environment with the finding, then the environments that it is compared with."""
    counts: Mapping[str, float]
    """The numbers behind the finding."""
    example: str
    """One case, such as the name of a group; empty if there is no name."""
    sentence: str

    @property
    def changes_meaning(self) -> bool:
        """Whether the finding changes what a number means, so that plans mention it."""
        return self.kind not in ("equal inputs", "small class")


def sentences(findings: Iterable[Finding]) -> list[str]:
    """The findings' sentences by kind: at most SHOWN of each, and how many more there are."""
    kinds = defaultdict[str, list[str]](list)
    for finding in findings:
        kinds[finding.kind].append(finding.sentence)
    shown = [(each[:SHOWN], len(each) - SHOWN, kind) for kind, each in kinds.items()]
    return [s for some, n, kind in shown for s in (*some, *[f"and {n} more ({kind})"] * (n > 0))]
