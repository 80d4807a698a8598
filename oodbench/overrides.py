"""Checks that a user's class spells hooks and attributes as the engine does and can be called so."""

import difflib
import inspect
from collections.abc import Collection
from functools import cached_property
from itertools import takewhile
from types import FunctionType
from typing import Any

from oodbench.errors import UserError, is_engine

NEAR = 0.8
"""The similarity (`difflib`'s ratio) from which a name of about the same length is a misspelt one."""
COMPUTED = (property, cached_property)
FUNCTIONS = (FunctionType, classmethod, staticmethod, *COMPUTED)


def own_bases(cls: type) -> list[type]:
    """The class and its bases that precede the engine's first class in the MRO."""
    return list(takewhile(lambda base: not is_engine(base.__module__), cls.__mro__))


def own_functions(cls: type) -> dict[str, Any]:
    """The functions, class methods and properties that the user's classes define, by name."""
    return {name: member for name, member in _own(cls).items() if isinstance(member, FUNCTIONS)}


def _own(cls: type) -> dict[str, Any]:
    return {n: m for base in reversed(own_bases(cls)) for n, m in vars(base).items()}


def _engines(cls: type) -> dict[str, Any]:
    """Public members of the engine's base classes by name; None for annotations without a value."""
    return {
        name: member
        for base in reversed(cls.__mro__)
        if is_engine(base.__module__)
        for name, member in (dict.fromkeys(inspect.get_annotations(base)) | vars(base)).items()
        if name[0] != "_"
    }


def _kind(member: object) -> str:
    if isinstance(member, type):
        return "class"
    is_function = isinstance(member, FUNCTIONS) and not isinstance(member, COMPUTED)
    return "function" if is_function else "attribute"


def check_overrides(noun: str, cls: type) -> None:
    """Raise UserError for a member that is misspelt, cannot be used as the engine does, or is missing.

    A user's function, attribute or nested class counts as misspelt if no base has its name and an engine
    member of the same kind has nearly the same: about one letter in five may differ, and the length by
    one. A helper may have any other name, also the plural of an engine's name or one
    that begins with an underscore.
    """
    if is_engine(cls.__module__):
        return
    who, own, engines = f"the {noun} {cls.__name__}", _own(cls), _engines(cls)
    bases = [base for base in cls.__mro__ if base not in own_bases(cls)]
    for name, member in own.items():
        wanted, kind = engines.get(name), _kind(member)
        if hasattr(wanted, "__final__"):
            raise UserError(f"{who} defines `{name}`, which is no hook: give it another name")
        if name in engines:
            if (mistake := _mistake(cls, name, member, wanted)) is not None:
                raise UserError(f"{who}: {mistake}")
        elif name[0] != "_" and not any(name in vars(base) for base in bases):
            alike = [
                n for n, m in engines.items() if _kind(m) == kind and not hasattr(m, "__final__")
            ]
            if (nearest := _misspelt(name, alike)) is not None:
                raise UserError(
                    f"{who} defines `{name}`, which overrides nothing; did you mean `{nearest}`? (Your "
                    f"own {kind} with such a name begins with an underscore: `_{name}`.)"
                )
    missing: Any = getattr(cls, "__abstractmethods__", ())
    if missing:
        raise UserError(f"{who} does not define {' and '.join(f'`{m}`' for m in sorted(missing))}")
    for space in ("Hparams", "Options"):
        _check_dataclass(who, cls, space)


def _misspelt(name: str, known: Collection[str]) -> str | None:
    plain = {each.replace("_", "").casefold(): each for each in known}
    word = name.replace("_", "").casefold()
    near = difflib.get_close_matches(word, plain, 1, NEAR)
    if not near or abs(len(near[0]) - len(word)) > 1 or word == f"{near[0]}s":
        return None
    return plain[near[0]]


def _mistake(cls: type, name: str, given: Any, wanted: Any) -> str | None:
    if wanted is None or _kind(wanted) == "class" or not isinstance(given, FUNCTIONS):
        return None
    if _kind(wanted) == "attribute" or isinstance(given, COMPUTED):
        same = _kind(wanted) == "attribute" and isinstance(given, COMPUTED)
        line = "begins with" if _kind(wanted) == "attribute" else "is a function, without"
        return None if same else f"`{name}` {line} `@property`"
    if isinstance(wanted, classmethod) and isinstance(given, FunctionType):
        return f"`{name}` begins with `@classmethod`"
    signature = inspect.signature(getattr(cls, name))
    usual = inspect.signature(wanted.__get__(None, cls))
    positional = [p for p in usual.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if isinstance(given, staticmethod) and isinstance(wanted, FunctionType):
        positional = positional[1:]
    try:
        signature.bind(*positional)
    except TypeError:
        arguments = ", ".join(p.name for p in positional)
        return f"`{name}{_plain(signature)}` is called with ({arguments})"
    return None


def _plain(signature: inspect.Signature) -> str:
    return f"({', '.join(str(p).partition(':')[0] for p in signature.parameters.values())})"


def _check_dataclass(who: str, cls: type, name: str) -> None:
    for base in own_bases(cls):
        space = vars(base).get(name)
        fields = [*inspect.get_annotations(space)] if isinstance(space, type) else []
        if fields and "__dataclass_fields__" not in vars(space):
            raise UserError(
                f"{who}: `{name}` begins with `@dataclass(frozen=True, kw_only=True)`; without it "
                f"`{fields[0]}` cannot be set"
            )
