"""Footnotes of tables, and their short versions for the screen."""

from collections.abc import Iterable
from dataclasses import dataclass


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
