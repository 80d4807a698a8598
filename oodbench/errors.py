"""User errors: one sentence that names the value, where it was given and the nearest valid name.

An error that a line of a user's code raised is described with that line.
"""

import difflib
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import wraps
from itertools import accumulate
from numbers import Integral
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MOST_THREADS = 1024  # of a run, and processes of a command
LONGEST_NAME, LONGEST_LIST = 60, 120
"""The most characters of an unknown name, and of the list of known names, in a sentence."""

FOLDERS = ("oodbench.algorithms.", "oodbench.datasets.")
"""Prefixes of the modules of methods and datasets, which do not belong to the engine."""
ORIGIN = ".origin"
"""The suffix of a file that says where each line in the copy of a script's class comes from."""
LONGEST_REASON = 200
"""The most characters that are shown of an error."""

user_packages: set[str] = set()
"""The packages imported as plug-ins or by entry points, which count as users' code even if installed."""


class UserError(ValueError):
    """A user's mistake, described in one sentence; the command line prints it and exits with 2."""

    def at(self, place: str) -> Self:
        """The same error, prefixed with `place`."""
        error = copy(self)
        error.args = (f"{place}: {self}",)
        return error


class MissingError(UserError):
    """Missing data or a missing optional package; `command` is the shell command that gets it."""

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message)
        self.command = command


def missing_package(who: str, package: str, extra: str) -> MissingError:
    """The error for an optional package that `who` needs and the extra `extra` installs.

    The command is quoted, as zsh would expand the brackets as a glob.
    """
    command = f"pip install 'oodbench[{extra}]'"
    return MissingError(f"{who} needs the package {package}: `{command}`", command)


PLUGIN_HINT = " (if a plug-in defines it: `plugins: [MODULE]` or --plugin MODULE)"
"""The end of an error on an unknown name that a plug-in may define."""
SAVED = "saved_"
"""The beginning of the names of modules with a class of a script or a notebook."""


def plugin_hint(plugins: Iterable[str]) -> str:
    """`PLUGIN_HINT` with the plug-ins of a sweep that have not been imported.

    Reading results does not import them, as the results may be somebody else's. Classes of a script or a
    notebook are left out: they are neither rules nor metrics.
    """
    others = [p for p in plugins if p not in sys.modules and not p.startswith(SAVED)]
    named = " ".join(f"--plugin {plugin}" for plugin in others)
    imports = f"in Python `import {', '.join(others)}`"
    return f" (if a plug-in of the sweep defines it: {named}, {imports})" if named else PLUGIN_HINT


def unknown(
    what: str, name: object, known: Iterable[Any], place: str = "", hint: str = "", cut: float = 0.5
) -> UserError:
    """The error for an unknown name, with the nearest known names.

    `what` is the kind of thing, such as `algorithm`; `hint` ends the sentence; near names are `cut` alike.
    """
    names = [str(k) for k in known if str(k)]
    quoted = {n: f"'{n}'" if "," in n else n for n in names}
    folded = {n.casefold(): n for n in reversed(names)}
    given = str(name).casefold()
    initials = "".join(word[:1] for word in given.split("_")) if "_" in given else ""  # lr
    matches = [initials] * (initials in folded) + difflib.get_close_matches(given, folded, 3, cut)
    near = [folded[n] for n in dict.fromkeys(matches)]
    where = f" in {place}" if place else ""
    if str(name) in near:  # it is a number
        return UserError(f"unknown {what} {name}{where}; did you mean the text '{name}'?")
    nearest = "there are none"
    if near:
        nearest = f"did you mean {' or '.join(quoted[n] for n in near)}?"
    elif names:
        ends = accumulate(len(n) + len(", ") for n in names)
        count = max(1, sum(end <= LONGEST_LIST for end in ends))
        shown = ", ".join(quoted[n] for n in names[:count])
        nearest = f"known: {shown}{', ...' if count < len(names) else ''}"
    shown = str(name) if len(str(name)) <= LONGEST_NAME else f"{str(name)[: LONGEST_NAME - 3]}..."
    return UserError(f"unknown {what} '{shown}'{where}; {nearest}{hint}")


def wrong_result(hook: str, who: str, wanted: str, given: object) -> UserError:
    """The error for a hook of a user's class, `who`, that does not return `wanted`."""
    shown = text if len(text := repr(given)) <= LONGEST_NAME else f"a {type(given).__name__}"
    if text != shown and hasattr(given, "shape"):
        shown += f" of the shape {tuple(given.shape)}"
    elif text != shown and isinstance(given, Mapping):
        shown += f" with the keys {', '.join(map(str, given))}"[:LONGEST_LIST]
    return UserError(f"`{hook}` of {who} must return {wanted}, not {shown}")


def whole_number(value: object, name: str, least: int = 0, most: float = float("inf")) -> int:
    """The value of an argument, an integer from `least` to `most`; raises UserError for others."""
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most:
        return int(value)
    to = "on" if most == float("inf") else f"to {most}"
    raise UserError(f"`{name}` must be a whole number from {least} {to}, not {value!r}")


def names_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a public function so that an unknown argument raises `UserError`."""
    known = inspect.signature(function).parameters

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise unknown("argument", name, known, f"oodbench.{function.__qualname__}")
        return function(*args, **kwargs)

    return wrapper


def counted(count: int, noun: str) -> str:
    """A number of things: `1 run`, `20 runs`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def some(texts: Sequence[str], most: int) -> str:
    """The first `most` texts, and how many more there are: `a, b and 3 more`."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def brief(text: object, length: int = LONGEST_REASON) -> str:
    """A text, such as a library's error message, on one line of at most `length` characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= length else f"{line[: length - 3]}..."


def is_engine(module: str) -> bool:
    """Whether a module belongs to the engine."""
    return module.partition(".")[0] == "oodbench" and not module.startswith(FOLDERS)


def users_line(error: BaseException, outer: int = 0) -> str | None:
    """The last line of a user's code in an error's traceback, as `FILE:LINE, in FUNCTION`, if any.

    The first `outer` calls of the traceback belong to the engine.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))[outer:]):
        code = frame.f_code
        if _is_users(str(frame.f_globals.get("__name__")), code.co_filename):
            within = "" if code.co_name == "<module>" else f", in {code.co_name}"
            return f"{_shown(code.co_filename, line)}{within}"
    return None


def _is_users(module: str, file: str) -> bool:
    package = module.partition(".")[0]
    if package in user_packages or module.startswith(FOLDERS):
        return True
    installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
    compiled = file.startswith("<") or file.endswith((".pyx", ".pxi"))
    others = installed or compiled or package in sys.stdlib_module_names
    return package != "oodbench" and not others


def _shown(file: str, line: int) -> str:
    with suppress(OSError, ValueError):
        origin = json.loads(Path(file).with_suffix(ORIGIN).read_text(encoding="utf-8"))
        file, line = origin["file"], origin["lines"].get(str(line), line)
    with suppress(OSError, ValueError):
        file = str(Path(file).relative_to(Path.cwd()))
    return f"{file}:{line}"


def definition(cls: type) -> str:
    """Where a class is defined, as `NAME, FILE:LINE`; only the name if no file defines the class."""
    try:
        file, (_, line) = inspect.getfile(cls), inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return cls.__name__
    return f"{cls.__name__}, {_shown(file, line)}"


def described(error: BaseException, otherwise: str | None = None) -> str:
    """An error in one sentence, with the line of the user's code that raised it, or `otherwise`."""
    reason = brief(f"{type(error).__name__}: {error}") + _suggestion(error)
    where = users_line(error) or otherwise
    return f"{reason} ({where})" if where else reason


def _suggestion(error: BaseException) -> str:
    """The end of a sentence on an attribute that an object lacks: near names, and members that have it."""
    if not isinstance(error, AttributeError) or error.name is None:
        return ""
    members = getattr(error.obj, "__dict__", {})
    if isinstance(of_torch := members.get("_modules"), dict):
        members = members | of_torch
    public = list[str]()
    with suppress(Exception):  # such as that of torch's `__dir__` before its `__init__`
        public = [name for name in dir(error.obj) if name[0] != "_"]
    near = difflib.get_close_matches(error.name, public, cutoff=0.7)
    near += [f"{n}.{error.name}" for n in public if error.name in dir(members.get(n))]
    return f"; did you mean {' or '.join(near[:3])}?" if near else ""


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn every error of a user's code in the block into a UserError that begins with `what`."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {described(error)}") from error
