"""What is registered, read from the source files alone: names, papers and first sentences, no torch."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from oodbench.registry import checkout, folder

KINDS = ("algorithm", "dataset", "network")


@dataclass(frozen=True)
class Entry:
    """A registered class, as the catalogue names it."""

    kind: str
    """One of `KINDS`."""
    name: str
    summary: str
    """The first line of the class's own docstring."""
    paper: str = ""
    """Where it was published; networks say it in their docstrings."""


def sources(kind: str) -> Path:
    """The folder whose files register the package's own classes of a kind."""
    return checkout() / "oodbench" / "networks" if kind == "network" else folder(f"{kind}s")


def own_entries() -> list[Entry]:
    """The package's own classes by kind and name, as their `@register("NAME", ...)` lines say.

    A registered class says its name, and its `paper` where it has one, as plain strings in that line;
    a test holds that this finds what the registries hold.
    """
    found = [
        entry
        for kind in KINDS
        for file in sources(kind).glob("*.py")
        for entry in _entries(kind, ast.parse(file.read_text(encoding="utf-8")))
    ]
    return sorted(found, key=lambda entry: (KINDS.index(entry.kind), entry.name.casefold()))


def has_entry_points() -> bool:
    """Whether an installed package registers classes, which only its import can name."""
    return any(entry_points(group=f"oodbench.{kind}s") for kind in KINDS)


def summary(docstring: str | None) -> str:
    """The first line of a docstring."""
    return inspect.cleandoc(docstring or "").partition("\n")[0]


def _entries(kind: str, module: ast.Module) -> Iterator[Entry]:
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for call in node.decorator_list:
            match call:
                case ast.Call(func=ast.Name("register"), args=[ast.Constant(str(name)), *_]):
                    yield Entry(kind, name, summary(ast.get_docstring(node)), _paper(call))


def _paper(call: ast.Call) -> str:
    """The value of `paper=` in a decorator, also inside of its `Metadata(...)`."""
    for node in ast.walk(call):
        match node:
            case ast.keyword(arg="paper", value=ast.Constant(str(paper))):
                return paper
    return ""
