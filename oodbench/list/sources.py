"""What is registered, read from the source files alone: names, papers and first sentences, no torch."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from oodbench.registry import CHANGES, checkout, folder

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
    changes: str = ""
    """Of an algorithm, what it changes: one of `oodbench.registry.CHANGES`."""
    transductive: bool = False
    """Whether predictions of an algorithm depend on other test inputs."""


def sources(kind: str) -> Path:
    """The folder whose files register the package's own classes of a kind."""
    return checkout() / "oodbench" / "networks" if kind == "network" else folder(f"{kind}s")


def own_entries() -> list[Entry]:
    """The package's own classes by kind and name, as their `@register("NAME", ...)` lines say.

    A registered class says its name, and its `paper` where it has one, as plain strings in that line;
    a test holds that this finds what the registries hold.
    """
    found = []
    for kind in KINDS:
        modules = [
            ast.parse(f.read_text(encoding="utf-8")) for f in sorted(sources(kind).glob("*.py"))
        ]
        classes = {n.name: n for m in modules for n in m.body if isinstance(n, ast.ClassDef)}
        found += [entry for module in modules for entry in _entries(kind, module, classes)]
    return sorted(found, key=lambda entry: (KINDS.index(entry.kind), entry.name.casefold()))


def has_entry_points() -> bool:
    """Whether an installed package registers classes, which only its import can name."""
    return any(entry_points(group=f"oodbench.{kind}s") for kind in KINDS)


def summary(docstring: str | None) -> str:
    """The first line of a docstring."""
    return inspect.cleandoc(docstring or "").partition("\n")[0]


def _entries(kind: str, module: ast.Module, classes: Mapping[str, ast.ClassDef]) -> Iterator[Entry]:
    """The classes that a module registers; `classes` are those of all modules of the kind, by name."""
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for call in node.decorator_list:
            match call:
                case ast.Call(func=ast.Name("register"), args=[ast.Constant(str(name)), *_]):
                    entry = Entry(kind, name, summary(ast.get_docstring(node)), _paper(call))
                    if kind == "algorithm":
                        changes = _attribute(node, "changes", classes, next(iter(CHANGES)))
                        seen = _attribute(node, "transductive", classes, False)
                        entry = replace(entry, changes=changes, transductive=seen)
                    yield entry


def _attribute(
    node: ast.ClassDef, name: str, classes: Mapping[str, ast.ClassDef], usual: Any
) -> Any:
    """The constant that a class, or the first of its bases that does, gives an attribute."""
    for line in node.body:
        match line:
            case ast.Assign(targets=[ast.Name(target)], value=ast.Constant(value)) if (
                target == name
            ):
                return value
    bases = [classes[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in classes]
    found = (_attribute(base, name, classes, None) for base in bases)
    return next((value for value in found if value is not None), usual)


def _paper(call: ast.Call) -> str:
    """The value of `paper=` in a decorator, also inside of its `Metadata(...)`."""
    for node in ast.walk(call):
        match node:
            case ast.keyword(arg="paper", value=ast.Constant(str(paper))):
                return paper
    return ""
