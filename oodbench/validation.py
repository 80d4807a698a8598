"""Checks the contents of files against pydantic models, with a sentence for each mistake."""

import reprlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from oodbench.errors import UserError, unknown

M = TypeVar("M", bound=BaseModel)
Place = tuple[str | int, ...]
"""The keys and indices that lead to a value in a file."""
MAX_PROBLEMS = 20
"""The most problems that are listed for a file."""


def parse(model: type[M], values: object, place: str) -> M:
    """The values of a file as a pydantic model; raises UserError with all problems."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(several(place, explain(error, values, model))) from error


def explain(error: ValidationError, values: object, model: type[BaseModel]) -> list[str]:
    """A sentence for each problem that pydantic found in `values`, by the key of the innermost model.

    A field's description completes "KEY must be".
    """
    sentences: dict[Place, str] = {}
    for problem in error.errors(include_url=False):
        inner: type[BaseModel] | None = model
        place: Place = ()
        of, at = model, values
        for part in problem["loc"]:  # between keys, pydantic names the members of unions
            if inner is None:
                break
            if isinstance(at, list) and isinstance(part, int):
                place, at = (*place, part), at[part]
            elif isinstance(at, Mapping) and (part in at or part in inner.model_fields):
                place, at, of = (*place, part), at.get(part), inner
                field = of.model_fields.get(str(part))
                inner = None if field is None else _model_in(field.annotation)
        if place not in sentences:
            sentences[place] = _sentence(problem, place, at, of, model)
    return [
        text
        for place, text in sentences.items()
        if not any(other[: len(place)] == place and other != place for other in sentences)
    ]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _home(key: str, model: type[BaseModel], root: type[BaseModel]) -> str:
    """Where in the file an unknown key of a model belongs, in parentheses, or nothing."""
    inner = {name: _model_in(field.annotation) for name, field in root.model_fields.items()}
    names = [name for name, each in inner.items() if each and key in each.model_fields]
    if names:
        return f" (it belongs in `{'` or `'.join(names)}`)"
    if get_close_matches(key, model.model_fields):
        return ""
    if "hparams" in model.model_fields:
        return " (hyperparameters stand under `hparams`)"
    if "algorithms" in model.model_fields:
        return " (options belong in `datasets`, hyperparameters in `hparams` of `algorithms`)"
    return ""


def _sentence(
    problem: Any, place: Place, value: object, model: type[BaseModel], root: type[BaseModel]
) -> str:
    where, fields = ".".join(map(str, place)), model.model_fields
    if not place or isinstance(place[-1], int):
        return f"{where} must be a name or a mapping, not {short(value)}".lstrip()
    if place[-1] not in fields:
        outer = ".".join(map(str, place[:-1]))
        home = _home(str(place[-1]), model, root)
        return str(unknown("key", short(place[-1])[1:-1], fields, outer, home))
    if problem["type"] == "missing":
        return f"{where} is missing"
    if description := fields[place[-1]].description:
        return f"{where} must be {description}, not {short(value)}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {message[:1].lower()}{message[1:]}, not {short(value)}"


def several(place: str, problems: Iterable[str]) -> str:
    """Join the problems of a file: a single one on the same line, several as a list below it."""
    different = list(dict.fromkeys(problems))
    if len(different) == 1:
        return f"{place}: {different[0]}"
    more = len(different) - MAX_PROBLEMS
    items = different[:MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else [])
    return "\n- ".join([f"{place} has {len(different)} problems:", *items])


def short(value: object) -> str:
    """A value in a few characters."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 2, 4, 4
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
