"""Everything that is registered, as a list for the terminal and as the page docs/catalogue.md."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from oodbench.list.sources import KINDS, Entry, has_entry_points, own_entries
from oodbench.registry import CHANGES

INDENT = 24
"""Columns before the sentences of the listing; longer names have a line of their own."""
HEAD = """\
# Catalogue

`python -m oodbench.list --format markdown > docs/catalogue.md` writes this page.
`python -m oodbench.list NAME` says all about one of them: hyperparameters or options with their
defaults and ranges, environments, network, licence.
"""


def entries(plugins: Sequence[str] = ()) -> list[Entry]:
    """Every registered class, by kind and name.

    The package's own are read from their files. Where plug-ins or installed packages register more,
    they are imported, and torch with them. Raises UserError for a plug-in that is not there.
    """
    if not plugins and not has_entry_points():
        return own_entries()
    from oodbench.list.registered import registered_entries

    return registered_entries(plugins)


def listing(found: Iterable[Entry], width: int) -> str:
    """Each name beside its sentence and paper, wrapped at words to `width` columns."""
    lines = []
    for title, group in _sections(found):
        lines += textwrap.wrap(title, width)
        for entry in group:
            lines += beside(
                entry.name, f"{entry.summary} {_bracketed(entry.paper)}{_marked(entry)}", width
            )
        lines += [""]
    return "\n".join([*lines, "All about one: python -m oodbench.list NAME", ""])


def beside(name: str, text: str, width: int, indent: int = INDENT) -> list[str]:
    """Lines with a name at the left and a text from column `indent` on, wrapped at words."""
    label = f"  {name}"
    wrapped = textwrap.wrap(
        text, max(width - indent, 20), break_long_words=False, break_on_hyphens=False
    )
    if len(label) >= indent:
        return [label, *(" " * indent + line for line in wrapped)]
    first, *others = wrapped or [""]
    return [f"{label:{indent}}{first}".rstrip(), *(" " * indent + line for line in others)]


def markdown(found: Iterable[Entry]) -> str:
    """The page docs/catalogue.md: a table for each kind."""
    lines = [HEAD]
    for title, group in _sections(found):
        lines += [
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| name | what it is | paper |",
            "| --- | --- | --- |",
        ]
        for entry in group:
            cells = (
                c.replace("|", r"\|")
                for c in (entry.name, entry.summary + _marked(entry), entry.paper)
            )
            lines += [f"| {' | '.join(cells)} |"]
        lines += [""]
    return "\n".join(lines[:-1]) + "\n"


def _sections(found: Iterable[Entry]) -> Iterator[tuple[str, Iterator[Entry]]]:
    """The entries under their titles: algorithms by what they change, then the other kinds."""
    order = [*CHANGES]

    def place(entry: Entry) -> tuple[int, int]:
        return KINDS.index(entry.kind), order.index(entry.changes) if entry.changes else 0

    for _, group in groupby(sorted(found, key=place), key=place):
        first, *others = group
        title = f"{first.kind}s"
        if first.changes:
            title += f", {first.changes}: {CHANGES[first.changes]}"
        yield title, iter([first, *others])


def _marked(entry: Entry) -> str:
    return " (transductive)" if entry.transductive else ""


def _bracketed(paper: str) -> str:
    return f"[{paper}]" if paper else ""
