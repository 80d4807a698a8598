"""What is wrong with a sweep file, in the words of its users. Imports no torch."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from oodbench.errors import unknown

MAX_PROBLEMS = 5
"""Problems that are told at once."""

Path = tuple[str | int, ...]
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 2, 4, 4
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def explain(
    error: ValidationError, values: Any, models: Mapping[str, type[BaseModel]], place: str
) -> str:
    """One line with every problem: the key, what it must be and what it is.

    `models` are the model of the whole (under "") and of the parts under its keys, where a list holds
    several. The description of a field completes the sentence "KEY must be".
    """
    found: dict[Path, str] = {}
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        path = _path(problem["loc"], values, models)
        found.setdefault(path, _sentence(problem["type"], path, values, models))
    told = [
        text
        for path, text in found.items()
        if not any(other[: len(path)] == path and other != path for other in found)
    ]
    return f"{place}: {several(told)}"


def several(problems: Sequence[str]) -> str:
    """Problems in one line, the first few of them in full."""
    different = list(dict.fromkeys(problems))
    more = len(different) - MAX_PROBLEMS
    return "; ".join(different[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def short(value: object) -> str:
    """A value of a file in a few characters."""
    return _SHORT.repr(value)


def _path(location: Path, values: Any, models: Mapping[str, type[BaseModel]]) -> Path:
    """The key or, in a part with keys of its own, the key there: what the user has to change."""
    key, *rest = location
    path: Path = (key,)
    if key not in models:
        return path
    at = values.get(key) if isinstance(values, Mapping) else None
    if isinstance(at, list):
        if not rest or not isinstance(rest[0], int):
            return path
        path, at = (*path, rest[0]), at[rest[0]]
    if isinstance(at, Mapping):
        fields = models[str(key)].model_fields
        inner = [k for k in rest if isinstance(k, str) and (k in fields or k in at)]
        path = (*path, *inner[:1])
    return path


def _sentence(kind: str, path: Path, values: Any, models: Mapping[str, type[BaseModel]]) -> str:
    """What is wrong at a path."""
    where = ".".join(map(str, path))
    in_part = len(path) > 1 and isinstance(path[-1], str)
    fields = models[str(path[0]) if in_part else ""].model_fields
    if kind == "extra_forbidden" and str(path[-1]) not in fields:
        part = ".".join(map(str, path[:-1]))
        return str(unknown("key", short(path[-1])[1:-1], fields, part))
    if kind == "missing":
        return f"{where} is missing"
    at = values
    for key in path:
        at = at[key]
    if len(path) == 2 and not in_part:
        return f"{where} must be a name or a mapping, not {short(at)}"
    return f"{where} must be {fields[str(path[-1])].description}, not {short(at)}"
