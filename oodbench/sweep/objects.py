"""Resolves objects that scripts pass in place of names: classes, dataset objects and data frames."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike, fspath
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from oodbench.algorithms import Algorithm, algorithms
from oodbench.datasets import PLAIN, Dataset, datasets, register
from oodbench.errors import LONGEST_LIST, UserError, definition
from oodbench.files import whole_file
from oodbench.networks.base import Network, networks
from oodbench.registry import Registry
from oodbench.results.data_files import DATA
from oodbench.sweep.notebook import MAIN, as_modules, made_folder, saved_file

KINDS: Mapping[str, tuple[Registry[Any], type]] = {
    "datasets": (datasets, Dataset),
    "algorithms": (algorithms, Algorithm),
    "network": (networks, Network),
}
"""The keys of a sweep file that name classes."""
SPANS = (pd.IntervalDtype, pd.PeriodDtype)
"""The types of columns that Parquet would hold in pandas' own way: as texts they are categories."""


def plain(value: Any) -> Any:
    """The lists, mappings and texts of a file, for tuples, other mappings and paths."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(inner) for inner in value]
    return fspath(value) if isinstance(value, PathLike) else value


def named(values: Mapping[str, Any], out: Path | None, data_dir: Path | None) -> dict[str, Any]:
    """The values of a sweep file, with names in place of classes and datasets, and files of data frames.

    Classes are registered. The files are written under `out`. Raises UserError for what has no name.
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
    return {**entry, "name": _name(key, entry["name"])} if "name" in entry else entry


def _name(key: str, cls: Any) -> Any:
    """The name of a class; any other value stays what it is."""
    if not isinstance(cls, type):
        return cls
    registry, base = KINDS[key]
    noun = f"{'an' if registry.noun[0] == 'a' else 'a'} {registry.noun}"
    if not issubclass(cls, base):
        wanted = f"{base.__module__}.{base.__name__}"
        raise UserError(f"{key}: {definition(cls)} is not {noun}: it is not derived from {wanted}")
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
    """Whether a class is a dataset without metadata of its own or of a base."""
    return issubclass(cls, Dataset) and getattr(cls, "metadata", PLAIN) is PLAIN


def _table(entry: dict[str, Any], out: Path | None, data_dir: Path | None) -> dict[str, Any]:
    """The entry of the dataset `Table` for a data frame, which is written as a Parquet file."""
    frame, label = entry.pop("data"), entry.setdefault("label", DATA)
    if not isinstance(frame, pd.DataFrame):
        raise UserError(
            f"datasets: `data` is a pandas data frame, not {type(frame).__name__}; a file is "
            "{'name': 'Table', 'file': FILE}"
        )
    if out is None:
        raise UserError("a data frame is written into a results directory, which `out` names")
    file = made_folder(out, DATA) / f"{quote(str(label), safe=' ')}.parquet"
    kinds = {name: getattr(kind, "categories", kind) for name, kind in frame.dtypes.items()}
    spans = [
        name for name, kind in kinds.items() if isinstance(getattr(kind, "dtype", kind), SPANS)
    ]
    try:
        frame = frame.astype(dict.fromkeys(spans, "string"))
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = "; ".join(map(str, error.args))
        hint = "; `.astype(str)` makes texts of mixed values" * ("type object" in reason)
        raise UserError(f"the data frame of {label} cannot be written: {reason}{hint}") from error
    if not (file.is_file() and pq.read_table(file).equals(table)):  # else its bytes stay
        with whole_file(file) as stream:
            pq.write_table(table, stream)
    return {"name": "Table", "file": str(file if data_dir is None else file.absolute()), **entry}


@contextmanager
def imported(values: Mapping[str, Any], out: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Have workers find the user's classes that the values of a sweep file name.

    Yields the modules that define them, and the names of the classes of `__main__`, which are written into
    modules for the time being; see `oodbench.sweep.notebook`. Raises UserError as `as_modules` does.
    """
    own, modules = dict[type, str](), dict[str, None]()
    for key, (registry, base) in KINDS.items():
        entries = values.get(key, ())
        names = {_named(entry) for entry in (entries if isinstance(entries, list) else [entries])}
        for name, cls in registry.items():
            if cls.__module__ == MAIN and (name in names or saved_file(out, cls).exists()):
                adds = "register" if _is_plain(cls) else f"{registry.noun}s.add"
                own[cls] = (
                    f"from {base.__module__} import {adds.partition('.')[0]}\n\n"
                    f"{adds}({name!r})({cls.__name__})"
                )
            elif name in names and not cls.__module__.startswith("oodbench."):
                modules[cls.__module__] = None
    with as_modules(own, out) as saved:
        yield [*modules, *saved], [cls.__name__ for cls in own]


def _named(entry: Any) -> Any:
    name = entry.get("name") if isinstance(entry, dict) else entry
    return name if isinstance(name, str) else None
