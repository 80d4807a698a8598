"""What is wrong with a sweep file, in the words of its users. Imports no torch."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from oodbench.errors import UserError, unknown
from oodbench.registry import Registry

MAX_PROBLEMS = 20
"""Problems that are told at once."""
PLUGIN_HINT = " (a plug-in's needs `plugins: [MODULE]` or --plugin MODULE)"

Path = tuple[str | int, ...]
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 2, 4, 4
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def explain(
    error: ValidationError, values: Any, models: Mapping[str, type[BaseModel]]
) -> list[str]:
    """A sentence for every problem: the key, what it must be and what it is.

    `models` are the model of the whole (under "") and of the parts under its keys, where a list holds
    several. The description of a field completes the sentence "KEY must be".
    """
    found: dict[Path, str] = {}
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        path = _path(problem["loc"], values, models)
        found.setdefault(path, _sentence(problem["type"], path, values, models))
    return [
        text
        for path, text in found.items()
        if not any(other[: len(path)] == path and other != path for other in found)
    ]


def unknown_names(values: Any) -> list[str]:
    """A sentence for every dataset, algorithm and network in a file's values that nobody registered.

    What has no name, or is a text where a list is due, is passed over. The plug-ins must have been
    loaded.
    """
    from oodbench.algorithms import algorithms
    from oodbench.datasets import datasets
    from oodbench.networks.base import networks

    kinds: dict[str, Registry[Any]] = {
        "datasets": datasets,
        "algorithms": algorithms,
        "network": networks,
    }
    found = []
    for key, registry in kinds.items():
        given = values.get(key) if isinstance(values, Mapping) else None
        if key == "network":
            given = [given]
        for item in given if isinstance(given, list) else ():
            name = item.get("name") if isinstance(item, Mapping) else item
            several_at_once = name == "all" or str(name).startswith("kind: ")
            usual = (key == "network" and name == "default") or (
                key == "algorithms" and several_at_once
            )
            if isinstance(name, str) and not usual:
                try:
                    registry.get(name)
                except UserError as error:
                    found.append(str(error) + PLUGIN_HINT)
    return found


def several(place: str, problems: Sequence[str]) -> str:
    """The problems of a place: one in its line, more as a list of which each has a line."""
    different = list(dict.fromkeys(problems))
    if len(different) == 1:
        return f"{place}: {different[0]}"
    more = len(different) - MAX_PROBLEMS
    items = different[:MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
    return "\n- ".join([f"{place} has {len(different)} problems:", *items])


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
