"""Sentences below a table, and the short lines that stand for them on a screen."""

from collections.abc import Iterable


class Note(str):
    """A sentence on a table; `brief` is its footnote on a screen, one line of at most 79 letters.

    An empty `brief` is left out of screens. Plain strings are shown in full.
    """

    brief: str

    def __new__(cls, text: str, brief: str) -> "Note":
        """Return a note of this text with this footnote."""
        note = super().__new__(cls, text)
        note.brief = brief
        return note


def brief(note: str) -> str:
    """Return the footnote of a sentence."""
    return note.brief if isinstance(note, Note) else note


def footnotes(notes: Iterable[str]) -> list[str]:
    """Return the footnotes of sentences, without those that screens leave out."""
    return [line for line in map(brief, notes) if line]
