"""The catalogue of registered classes, parsed from source files, and its formats."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from oodbench.registry import (
    CHANGES,
    Classes,
    bases_of,
    checkout,
    folder,
    paper_of,
    written,
)

KINDS = ("algorithm", "dataset", "network", "adaptation")
INDENT = 24
"""The column at which the sentences of the listing start; longer names get a separate line."""
HEAD = """\
# Catalogue

`python -m oodbench.list --format markdown > docs/catalogue.md` writes this page.
`python -m oodbench.list NAME` says all about one of them: hyperparameters or options with their
defaults and ranges, environments, network, licence.
"""


@dataclass(frozen=True)
class Entry:
    """A registered class, as the catalogue names it."""

    kind: str
    """One of `KINDS`."""
    name: str
    summary: str
    """The first line of the class's docstring."""
    paper: str = ""
    """The publication; networks cite theirs in the docstring."""
    changes: str = ""
    """The part of training that an algorithm changes, a key of `oodbench.registry.CHANGES`."""
    transductive: bool = False
    """Whether an algorithm's predictions depend on other test inputs."""


def own_entries() -> list[Entry]:
    """The package's classes by kind and name, from their `@register("NAME", ...)` lines.

    Name and `paper` must be string literals; a test compares the entries with the registries.
    """
    entries: list[Entry] = []
    for kind in KINDS:
        room = checkout() / "oodbench" / f"{kind}s"
        files = sorted((room if room.is_dir() else folder(f"{kind}s")).glob("*.py"))
        for name, call, node, classes in written(files):
            entry = Entry(kind, name, summary(ast.get_docstring(node)), paper_of(call))
            if kind == "algorithm":
                changes = _attribute(node, "changes", classes, next(iter(CHANGES)))
                seen = _attribute(node, "transductive", classes, False)
                entry = replace(entry, changes=changes, transductive=seen)
            entries.append(entry)
    return sorted(entries, key=lambda entry: (KINDS.index(entry.kind), entry.name.casefold()))


def summary(docstring: str | None) -> str:
    """The first line of a docstring."""
    return inspect.cleandoc(docstring or "").partition("\n")[0]


def _attribute(node: ast.ClassDef, name: str, classes: Classes, usual: Any) -> Any:
    for line in node.body:
        match line:
            case ast.Assign([ast.Name(target)], ast.Constant(value)) if target == name:
                return value
    inherited = (_attribute(base, name, classes, None) for base in bases_of(node, classes))
    return next((value for value in inherited if value is not None), usual)


def listing(entries: Iterable[Entry], width: int) -> str:
    """Names with their sentences and papers, wrapped at words to `width` columns."""
    lines = []
    for title, section in _sections(entries):
        lines += textwrap.wrap(title, width)
        for entry in section:
            paper = f"[{entry.paper}]" if entry.paper else ""
            lines += beside(entry.name, f"{entry.summary} {paper}{_marked(entry)}", width)
        lines += [""]
    return "\n".join([*lines, "All about one: python -m oodbench.list NAME", ""])


def beside(name: str, text: str, width: int) -> list[str]:
    """Lines with a name on the left and a text from column INDENT, wrapped at words."""
    label, indent = f"  {name}", " " * INDENT
    fits = len(label) < INDENT
    lines = textwrap.wrap(
        text,
        max(width, INDENT + 20),
        initial_indent=f"{label:{INDENT}}" if fits else indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines if fits and lines else [label, *lines]


def markdown(entries: Iterable[Entry]) -> str:
    """The page docs/catalogue.md: a table for each kind."""
    lines = [HEAD]
    for title, section in _sections(entries):
        lines += [
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| name | what it is | paper |",
            "| --- | --- | --- |",
        ]
        for entry in section:
            cells = (entry.name, entry.summary + _marked(entry), entry.paper)
            lines += ["| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"]
        lines += [""]
    return "\n".join(lines[:-1]) + "\n"


def _sections(entries: Iterable[Entry]) -> Iterator[tuple[str, Iterator[Entry]]]:
    titles = {("algorithm", each): f"algorithms, {each}: {CHANGES[each]}" for each in CHANGES}
    titles |= {(kind, ""): f"{kind}s" for kind in KINDS}
    order = [*titles]
    in_order = sorted(entries, key=lambda entry: order.index((entry.kind, entry.changes)))
    return groupby(in_order, lambda entry: titles[entry.kind, entry.changes])


def _marked(entry: Entry) -> str:
    return " (transductive)" if entry.transductive else ""
