"""Turns classes, datasets and data frames of a script or a notebook into the names and files of a sweep.

A worker is another process, which does not run the script again. So the source of a script's class is
written into OUT/plugins/saved_NAME.py, with the imports and constants that the class uses. The script's
other classes and functions that it uses become such modules, too. saved_NAME.origin maps their lines to
the script's lines, which errors name. Digests are taken of these files: editing a class makes its runs
stale, editing the rest of the script does not.
"""

import ast
import json
import symtable
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from os import PathLike, fspath
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from oodbench.algorithms import Algorithm, algorithms
from oodbench.data.tables.typed import table_of_frame
from oodbench.datasets import PLAIN, Dataset, datasets, register
from oodbench.errors import LONGEST_LIST, ORIGIN, SAVED, UserError, definition
from oodbench.files import whole_file, write_whole
from oodbench.identity import digest_of
from oodbench.networks.base import Network, networks
from oodbench.registry import Registry
from oodbench.results.directory import PLUGINS, Directory
from oodbench.results.stale import DATA

MAIN = "__main__"
LONGEST_NAME = 120
"""The most letters in the name of a data frame's file; file systems take some 255."""
ELSE = "write it into a separate file, and import that"
KINDS: Mapping[str, tuple[Registry[Any], type]] = {
    "datasets": (datasets, Dataset),
    "algorithms": (algorithms, Algorithm),
    "network": (networks, Network),
}
"""The keys of a sweep file that name classes."""


def plain(value: Any) -> Any:
    """The values as a file would hold them: arrays, tuples, iterators as lists, numpy's numbers, paths as
    texts.
    """
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range | Iterator):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return fspath(value) if isinstance(value, PathLike) else value


def as_names(values: Mapping[str, Any], out: Path | None, data_dir: Path | None) -> dict[str, Any]:
    """The values of a sweep file, with names for classes and datasets, and files for data frames.

    Registers the classes, and writes the files under `out`. Raises UserError for a class without a name.
    """
    found: dict[str, Any] = plain(values)
    for key in KINDS:
        if isinstance(entries := found.get(key), list):
            found[key] = [_entry(key, entry, out, data_dir) for entry in entries]
        elif entries is not None:
            found[key] = _entry(key, entries, out, data_dir)
    return found


def _entry(key: str, entry: Any, out: Path | None, data_dir: Path | None) -> Any:
    if isinstance(entry, Dataset):
        return plain({"name": entry.name, **asdict(entry.options)})
    if isinstance(entry, pd.DataFrame):
        columns = [*map(str, entry.columns)]
        absent = [f"`{n}`" for n in ("environment", "target") if n not in columns]
        if absent and key == "datasets":
            known = shorten(", ".join(columns), LONGEST_LIST, placeholder="...")
            raise UserError(
                f"{key}: a data frame without a column {' and '.join(absent)} is given as "
                f'{{"data": frame, "environment": ..., "target": ...}}, which name columns: {known}'
            )
        entry = {"data": entry}
    if not isinstance(entry, dict):
        return _name(key, entry)
    if key == "datasets" and "data" in entry and "name" not in entry:
        return _table(entry, out, data_dir)
    for name, value in entry.items():
        if isinstance(value, pd.DataFrame):
            raise UserError(f"{key}: a data frame is the value of `data`, not of `{name}`")
    return {**entry, "name": _name(key, entry["name"])} if "name" in entry else entry


def _name(key: str, cls: Any) -> Any:
    """The name of a class; a value that a file may have is returned as it is."""
    if cls is None or isinstance(cls, str | int | float | list | dict):
        return cls
    if not isinstance(cls, type):
        kind = type(cls).__name__
        raise UserError(f"{key}: a class or a name is needed, not an object of the class {kind}")
    registry, base = KINDS[key]
    try:
        registry.require_base(cls)
    except UserError as error:
        raise error.at(key) from error
    for name, known in registry.items():
        if known is cls:
            return name
    if cls.__module__ != MAIN:
        paper = ', paper="none"' if base is Algorithm else ""
        raise UserError(
            f"{key}: {definition(cls)} has no name yet: write `from {base.__module__} import register` "
            f"into its module, and `@register({cls.__name__!r}{paper})` above the class"
        )
    add = register if _is_plain(cls) else registry.add
    add(cls.__name__)(cls)
    return cls.__name__


def _is_plain(cls: type) -> bool:
    return issubclass(cls, Dataset) and getattr(cls, "metadata", PLAIN) is PLAIN


def _table(entry: dict[str, Any], out: Path | None, data_dir: Path | None) -> dict[str, Any]:
    frame, label = entry.pop("data"), entry.setdefault("label", DATA)
    if not isinstance(frame, pd.DataFrame):
        raise UserError(
            f"datasets: `data` is a pandas data frame, not {type(frame).__name__}; a file is "
            "{'name': 'Table', 'file': FILE}"
        )
    if out is None:
        raise UserError("a data frame is written into a results directory, which `out` names")
    stem = quote(str(label), safe=" ")
    if len(stem) > LONGEST_NAME:
        stem = f"{stem[:LONGEST_NAME]}-{digest_of(stem.encode())}"
    file = _folder(out, DATA) / f"{stem}.parquet"
    table = table_of_frame(frame, f"the data frame of {label}")
    if not (file.is_file() and pq.read_table(file).equals(table)):  # an equal file keeps its bytes
        with whole_file(file) as stream:
            pq.write_table(table, stream)
    return {"name": "Table", "file": str(file if data_dir is None else file.absolute()), **entry}


def _folder(out: Path, name: str) -> Path:
    Directory(out).plan_lock()  # or a UserError for a folder that is no results directory
    (out / name).mkdir(exist_ok=True)
    return out / name


@contextmanager
def imported(values: Mapping[str, Any], out: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Within the block, workers can import the user's classes that the values of a sweep file name.

    Yields the modules that define the classes, and the names of the classes of `__main__`, which belong to
    saved modules during the block. Raises UserError for a class whose source is not known.
    """
    footers, others = dict[type, str](), dict[str, None]()
    for key, (registry, base) in KINDS.items():
        entries = values.get(key)
        listed = entries if isinstance(entries, list) else [entries]
        names = [entry.get("name") if isinstance(entry, dict) else entry for entry in listed]
        for name, cls in registry.items():
            if cls.__module__ == MAIN and (name in names or _saved_file(out, cls).exists()):
                adds = "register" if _is_plain(cls) else f"{registry.noun}s.add"
                footers[cls] = (
                    f"from {base.__module__} import {adds.partition('.')[0]}\n\n"
                    f"{adds}({name!r})({cls.__name__})"
                )
            elif name in names and not cls.__module__.startswith("oodbench."):
                others[cls.__module__] = None
    path = [*sys.path]
    saved = {cls: ModuleType(f"{SAVED}{cls.__name__}") for cls in footers}
    written: set[str] = set()
    for cls in saved:
        _write(cls, out, footers, written)
    for cls, module in saved.items():
        module.__file__ = str(_saved_file(out, cls))
        setattr(module, cls.__name__, cls)
        sys.modules[module.__name__] = module
        cls.__module__ = module.__name__
    if (out / PLUGINS).is_dir():
        sys.path.append(str((out / PLUGINS).absolute()))
    try:
        yield [*others, *(m.__name__ for m in saved.values())], [cls.__name__ for cls in saved]
    finally:
        sys.path[:] = path
        for cls, module in saved.items():
            cls.__module__ = MAIN
            sys.modules.pop(module.__name__)


def _saved_file(out: Path, cls: type) -> Path:
    return out / PLUGINS / f"{SAVED}{cls.__name__}.py"


def _write(value: Any, out: Path, footers: Mapping[type, str], written: set[str]) -> None:
    if value.__name__ in written:
        return
    written.add(value.__name__)
    node, source = _definition(value.__name__)
    text, names = ast.unparse(node), vars(sys.modules[MAIN])
    lines = []
    for name in sorted(_global_names(text) & names.keys() - {value.__name__}):
        used = names[name]
        if getattr(used, "__module__", None) == MAIN and hasattr(used, "__name__"):
            _write(used, out, footers, written)
            lines.append(f"from {SAVED}{used.__name__} import {used.__name__} as {name}")
        elif not name.startswith("__"):
            lines.append(_imported(name, used) or _constant(name, used, value.__name__))
    _folder(out, PLUGINS)
    file = _saved_file(out, value)
    write_whole(file, "\n".join([*lines, "", "", text, "", footers.get(value, ""), ""]))
    origin = {"file": source, "lines": _origins(node, text, len(lines) + 2)}
    write_whole(file.with_suffix(ORIGIN), json.dumps(origin))


def _origins(node: ast.stmt, text: str, before: int) -> dict[int, int]:
    """The script's line for each line of `text`, which has its syntax tree and follows `before` lines."""
    found: dict[int, int] = {}
    for ours, copied in zip(ast.walk(node), ast.walk(ast.parse(text).body[0]), strict=False):
        if isinstance(copied, ast.stmt | ast.expr) and isinstance(ours, ast.stmt | ast.expr):
            found.setdefault(copied.lineno + before, ours.lineno)
    return found


def _definition(name: str) -> tuple[ast.stmt, str]:
    """The last definition of a class or function in the script or notebook, and its file or cell."""
    main = vars(sys.modules[MAIN])
    texts: dict[str, str] = {}
    if "In" in main and "get_ipython" in main:
        shell = main["get_ipython"]()
        texts = {f"In[{i}]": shell.transform_cell(cell) for i, cell in enumerate(main["In"])}
    elif file := main.get("__file__"):
        texts = {str(Path(file).absolute()): Path(file).read_text(encoding="utf-8")}
    for source, text in reversed(texts.items()):
        with suppress(SyntaxError):
            for node in reversed([*_global_definitions(ast.parse(text))]):
                if node.name == name:
                    return node, source
    raise UserError(f"the source of {name}, which {MAIN} defines, is not known here: {ELSE}")


def _global_definitions(tree: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Yield the classes and functions that a module defines, also in blocks such as `if`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node
        else:
            yield from _global_definitions(node)


def _global_names(text: str) -> set[str]:
    tables, names = [symtable.symtable(text, MAIN, "exec")], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used = (s for s in table.get_symbols() if s.is_global() and s.is_referenced())
        names.update(symbol.get_name() for symbol in used)
    return names


def _imported(name: str, value: Any) -> str | None:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    home = getattr(value, "__module__", None)
    for there in (name, getattr(value, "__name__", name)):
        if home and getattr(sys.modules.get(home), there, None) is value:
            return f"from {home} import {there} as {name}"
    return None


def _constant(name: str, value: Any, user: str) -> str:
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if bool(ast.literal_eval(repr(value)) == value):
            return f"{name} = {value!r}"
    raise UserError(
        f"{user} uses `{name}`, which is neither imported nor a plain constant, and cannot be given to "
        f"other processes: {ELSE}"
    )
