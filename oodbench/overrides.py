"""Checks that the hooks of a user's class are spelt and called as the engine's are."""

import difflib
import inspect
from collections.abc import Iterable
from itertools import takewhile
from types import FunctionType
from typing import Any

from oodbench.blame import is_engine
from oodbench.errors import UserError

NEAR = 0.8
"""The similarity (`difflib`'s ratio) from which a name of about the same length is a misspelt hook."""
FUNCTIONS = (FunctionType, classmethod, staticmethod, property)


def own_bases(cls: type) -> list[type]:
    """The class and those of its bases that are not the engine's and come before it."""
    return list(takewhile(lambda base: not is_engine(base.__module__), cls.__mro__))


def own_functions(cls: type) -> dict[str, Any]:
    """The functions, class methods and properties that the user's classes define, by name."""
    return _functions(own_bases(cls))


def _functions(bases: Iterable[type]) -> dict[str, Any]:
    members = [item for base in reversed([*bases]) for item in vars(base).items()]
    return {name: member for name, member in members if isinstance(member, FUNCTIONS)}


def check_overrides(noun: str, cls: type) -> None:
    """Raise UserError for a hook that is misspelt, cannot be called as the engine calls it, or is missing.

    A function is a misspelt hook if no base has its name and it is nearly a hook's: of the same letters
    but for about one in five, and at most one longer or shorter. A helper of the user's may have any
    other name, and the plural of a hook's or one that begins with an underscore, too.
    """
    if is_engine(cls.__module__):
        return
    who, functions = f"the {noun} {cls.__name__}", own_functions(cls)
    bases = [base for base in cls.__mro__ if base not in own_bases(cls)]
    of_engine = _functions(base for base in bases if is_engine(base.__module__))
    hooks = {n: f for n, f in of_engine.items() if n[0] != "_" and not hasattr(f, "__final__")}
    for name in functions:
        if hasattr(of_engine.get(name), "__final__"):
            raise UserError(f"{who} defines `{name}`, which is no hook: give it another name")
        if name in hooks:
            if (mistake := _mistake(cls, name, functions[name], hooks[name])) is not None:
                raise UserError(f"{who}: {mistake}")
        elif name[0] != "_" and not any(name in vars(base) for base in bases):
            if (hook := _misspelt(name, hooks)) is not None:
                raise UserError(
                    f"{who} defines `{name}`, which overrides nothing; did you mean `{hook}`? (A "
                    f"function of your own with such a name begins with an underscore: `_{name}`.)"
                )
    missing: Any = getattr(cls, "__abstractmethods__", ())
    if missing:
        raise UserError(f"{who} does not define {' and '.join(f'`{m}`' for m in sorted(missing))}")
    for space in ("Hparams", "Options"):
        _check_dataclass(who, cls, space)


def _misspelt(name: str, hooks: Iterable[str]) -> str | None:
    plain = {hook.replace("_", ""): hook for hook in hooks}
    word = name.replace("_", "").casefold()
    near = difflib.get_close_matches(word, plain, 1, NEAR)
    if not near or abs(len(near[0]) - len(word)) > 1 or word == f"{near[0]}s":
        return None
    return plain[near[0]]


def _mistake(cls: type, name: str, given: Any, wanted: Any) -> str | None:
    if isinstance(wanted, property) or isinstance(given, property):
        both = isinstance(wanted, property) and isinstance(given, property)
        line = "begins with" if isinstance(wanted, property) else "is a function, without"
        return None if both else f"`{name}` {line} `@property`"
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
