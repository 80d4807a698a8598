"""The catalogue of what is registered, and its listing."""

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from oodbench.adaptations import adaptations
from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.networks.base import networks
from oodbench.registry import CHANGES, Registry, load_plugins

KINDS = ("algorithm", "dataset", "network", "adaptation")
INDENT = 24
"""Columns before the sentences of the listing; longer names have a line of their own."""
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
    """Where it was published; networks say it in their docstrings."""
    changes: str = ""
    """The part of training that an algorithm changes, a key of `oodbench.registry.CHANGES`."""
    transductive: bool = False
    """Whether predictions of an algorithm depend on other test inputs."""


def registries(plugins: Sequence[str] = ()) -> Mapping[str, Registry[Any]]:
    """The registries by kind, with what the plug-ins register; raises UserError for unknown ones."""
    load_plugins(plugins)
    every: tuple[Registry[Any], ...] = (algorithms, datasets, networks, adaptations)
    return dict(zip(KINDS, every, strict=True))


def registered_entries(plugins: Sequence[str] = ()) -> list[Entry]:
    """Every registered class by kind and name, those of plug-ins and installed packages included."""
    entries = []
    for kind, registry in registries(plugins).items():
        for name, cls in registry.items():
            method = (cls.changes, cls.transductive) if kind == "algorithm" else ()
            entries.append(Entry(kind, name, summary(cls.__doc__), paper(registry, name), *method))
    return sorted(entries, key=lambda entry: (KINDS.index(entry.kind), entry.name.casefold()))


def paper(registry: Registry[Any], name: str) -> str:
    """The paper that a class was registered with; networks have none."""
    metadata = getattr(registry.get(name), "metadata", None)
    return registry.papers.get(name, "") if metadata is None else str(metadata.paper)


def summary(docstring: str | None) -> str:
    """The first line of a docstring."""
    return inspect.cleandoc(docstring or "").partition("\n")[0]


def listing(entries: Iterable[Entry], width: int) -> str:
    """Each name beside its sentence and paper, wrapped at words to `width` columns."""
    lines = []
    for title, section in _sections(entries):
        lines += textwrap.wrap(title, width)
        for entry in section:
            paper = f"[{entry.paper}]" if entry.paper else ""
            lines += beside(entry.name, f"{entry.summary} {paper}{_marked(entry)}", width)
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
    changes = ["", *CHANGES]

    def key(entry: Entry) -> tuple[int, int]:
        return KINDS.index(entry.kind), changes.index(entry.changes)

    for _, section in groupby(sorted(entries, key=key), key=key):
        first, *others = section
        title = f"{first.kind}s"
        if first.changes:
            title += f", {first.changes}: {CHANGES[first.changes]}"
        yield title, iter([first, *others])


def _marked(entry: Entry) -> str:
    return " (transductive)" if entry.transductive else ""
