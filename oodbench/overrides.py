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
    who, own = f"the {noun} {cls.__name__}", _own(cls)
    others = [base for base in cls.__mro__ if base not in own_bases(cls)]
    engines: dict[str, Any] = {}  # None for annotations without a value
    for base in reversed(cls.__mro__):
        if is_engine(base.__module__):
            engines |= dict.fromkeys(inspect.get_annotations(base)) | vars(base)
    hooks = {n: m for n, m in engines.items() if n[0] != "_" and not hasattr(m, "__final__")}
    for name, member in own.items():
        kind = _kind(member)
        if hasattr(engines.get(name), "__final__"):
            raise UserError(f"{who} defines `{name}`, which is not a hook: give it another name")
        if name in hooks:
            if (mistake := _mistake(cls, name, member, hooks[name])) is not None:
                raise UserError(f"{who}: {mistake}")
        elif name[0] != "_" and not any(name in vars(base) for base in others):
            alike = [n for n, m in hooks.items() if _kind(m) == kind]
            if (nearest := _misspelt(name, alike)) is not None:
                raise UserError(
                    f"{who} defines `{name}`, which overrides nothing; did you mean `{nearest}`? (Your "
                    f"own {kind} with such a name begins with an underscore: `_{name}`.)"
                )
    if missing := getattr(cls, "__abstractmethods__", ()):
        raise UserError(f"{who} does not define {' and '.join(f'`{m}`' for m in sorted(missing))}")
    for name in ("Hparams", "Options"):
        space = own.get(name)
        annotated = [*inspect.get_annotations(space)] if isinstance(space, type) else []
        if annotated and "__dataclass_fields__" not in vars(space):
            raise UserError(
                f"{who}: `{name}` begins with `@dataclass(frozen=True, kw_only=True)`; without it "
                f"`{annotated[0]}` cannot be set"
            )


def _misspelt(name: str, known: Collection[str]) -> str | None:
    plain = {each.replace("_", "").casefold(): each for each in known}
    word = name.replace("_", "").casefold()
    near = difflib.get_close_matches(word, plain, 1, NEAR)
    if not near or abs(len(near[0]) - len(word)) > 1 or word == f"{near[0]}s":
        return None
    return plain[near[0]]


def _mistake(cls: type, name: str, given: Any, wanted: Any) -> str | None:
    if wanted is None or isinstance(wanted, type) or not isinstance(given, FUNCTIONS):
        return None
    if _kind(wanted) == "attribute":
        return None if isinstance(given, COMPUTED) else f"`{name}` begins with `@property`"
    if isinstance(given, COMPUTED):
        return f"`{name}` is a function, without `@property`"
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
        defined = ", ".join(str(p).partition(":")[0] for p in signature.parameters.values())
        arguments = ", ".join(p.name for p in positional)
        return f"`{name}({defined})` is called with ({arguments})"
    return None
