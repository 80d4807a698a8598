"""The BibTeX entries of the methods, datasets and networks of results.

A class names its publication in `paper=` of its registration, or by an arXiv number in its docstring; its
source is parsed, not imported, because that would import torch. papers.bib has the entries.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from oodbench.registry import bases_of, checkout, folder, paper_of, written
from oodbench.results.tables import Tables, plugins_of

ARXIV = re.compile(r"(?<!\d)\d{4}\.\d{4,5}(?!\d)")
COLUMNS = ("algorithm", "dataset", "network")
"""The columns of runs with names of published work."""


@cache
def entries() -> dict[str, str]:
    """The entries of papers.bib by their keys."""
    text = Path(__file__).with_name("papers.bib").read_text()
    return {re.findall(r"{(\w+),", entry)[0]: entry for entry in text.strip().split("\n\n")}


def keys_of(paper: str) -> list[str]:
    """The keys of the entries in a text such as `arXiv:1907.02893 and 2003.00688`."""
    numbers = ARXIV.findall(paper)
    keys = []
    for key, entry in entries().items():
        fields = dict(re.findall(r"^  (eprint|doi|annote) = {(.*)},$", entry, re.MULTILINE))
        named = [fields[name] for name in ("doi", "annote") if name in fields]
        if fields.get("eprint") in numbers or any(text in paper for text in named):
            keys.append(key)
    return keys


def papers(files: Iterable[Path]) -> dict[str, str]:
    """The publications of the classes registered in these files, by name; a base's if a class has none."""
    found = {}
    for name, call, cls, classes in written(files):
        docstrings = (ast.get_docstring(c) or "" for c in (cls, *bases_of(cls, classes)))
        texts = [paper_of(call), *(" ".join(ARXIV.findall(text)[:1]) for text in docstrings)]
        found[name] = next(filter(None, texts), "")
    return found


def bibtex(frames: Tables) -> tuple[list[str], list[str]]:
    """The entries of the runs' methods, datasets and networks, and the names without an entry."""
    named = {str(name) for column in COLUMNS for name in frames.runs[column].dropna()}
    known = papers([*own_files(), *_sources(plugins_of(frames))])
    keys = {name: keys_of(known.get(name, "")) for name in named}
    used = sorted({key for of_name in keys.values() for key in of_name})
    return [entries()[key] for key in used], sorted(name for name in named if not keys[name])


def _sources(plugins: Iterable[str]) -> Iterator[Path]:
    """Yield the files of plug-ins that are single modules; finding one in a package would import code."""
    for plugin in plugins:
        with suppress(ValueError):
            spec = find_spec(plugin) if plugin.isidentifier() else None
            if spec is not None and spec.has_location and spec.origin is not None:
                yield Path(spec.origin)


def own_files() -> list[Path]:
    """The files of the package that register methods, datasets and networks."""
    folders = (folder("algorithms"), folder("datasets"), checkout() / "oodbench" / "networks")
    return [file for each in folders for file in sorted(each.glob("*.py"))]
