"""Finds whether an error comes from the engine or from a line of a user's code."""

import inspect
import json
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oodbench.errors import UserError

FOLDERS = ("oodbench.algorithms.", "oodbench.datasets.")
"""Prefixes of the modules of methods and datasets, which are not the engine."""
ORIGIN = ".origin"
"""The suffix of the file beside the copy of a script's class that says where each line comes from."""
LONGEST_REASON = 200
"""The most characters that are shown of an error."""

plugins: set[str] = set()
"""The packages imported as plug-ins or by entry points, which are users' code even if installed."""


def is_engine(module: str) -> bool:
    """Whether a module is of the engine."""
    return module.partition(".")[0] == "oodbench" and not module.startswith(FOLDERS)


def place(error: BaseException, outer: int = 0) -> str | None:
    """The last line of a user's code that led to an error, as `FILE:LINE, in FUNCTION`, if one did.

    The first `outer` calls of the traceback are the engine's.
    """
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))[outer:]):
        code = frame.f_code
        if _is_users(str(frame.f_globals.get("__name__")), code.co_filename):
            within = "" if code.co_name == "<module>" else f", in {code.co_name}"
            return f"{_shown(code.co_filename, line)}{within}"
    return None


def _is_users(module: str, file: str) -> bool:
    package = module.partition(".")[0]
    if package in plugins or module.startswith(FOLDERS):
        return True
    installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
    others = installed or file.startswith("<") or package in sys.stdlib_module_names
    return package != "oodbench" and not others


def _shown(file: str, line: int) -> str:
    with suppress(OSError, ValueError):
        origin = json.loads(Path(file).with_suffix(ORIGIN).read_text(encoding="utf-8"))
        file, line = origin["file"], origin["lines"].get(str(line), line)
    with suppress(OSError, ValueError):
        file = str(Path(file).relative_to(Path.cwd()))
    return f"{file}:{line}"


def definition(cls: type) -> str:
    """Where a class is defined, as `NAME, FILE:LINE`; its name alone where no file defines it."""
    try:
        file, (_, line) = inspect.getfile(cls), inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return cls.__name__
    return f"{cls.__name__}, {_shown(file, line)}"


def described(error: BaseException, otherwise: str | None = None) -> str:
    """An error in one sentence, with the user's line that led to it, if any, or `otherwise`."""
    reason = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_REASON)
    where = place(error) or otherwise
    return f"{reason} ({where})" if where else reason


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn every error of a user's code in the block into a UserError, with `what` before it."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {described(error)}") from error
