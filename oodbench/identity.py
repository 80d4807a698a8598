"""Digests of code and files: equal digests mean equal contents.

The code of a class is the file that defines it and all files that it imports, directly or not, except the
standard library, installed packages and the package's engine, which the version identifies. Comments,
docstrings and formatting do not count. Files are parsed, never imported, so that a report can check whether
the code of a method is still the code that trained its runs.

A process reads a file once, and again only if its size or modification time changes.
"""

import ast
import gzip
import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, lru_cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from typing_extensions import TypedDict

from oodbench.registry import checkout, folder, working_directory

FOLDERS = ("algorithms", "datasets")
"""The folders of the package whose files are followed."""
INSTALLED = ("site-packages", "dist-packages")

File = Path | str
F = TypeVar("F", bound=File)
T = TypeVar("T")
Stamp = tuple[int, int]
"""The size of a file and its modification time in nanoseconds, which change with its contents."""
Import = tuple[int, str, str]
"""The level, the module and the name of `from ..module import name`; `import module` has no name."""


class Code(TypedDict):
    """The source of a class, or of several."""

    files: dict[str, str]
    """A digest of each file's code; the first file defines the class."""


class Digests(TypedDict, total=False):
    """The digests of the code and data that a run was trained with."""

    method: Code
    network: Code
    """The digest of a network that is not part of the package."""
    dataset: Code
    files: str
    """The digest of the data files, see `oodbench.results.stale`."""


def digest_of(content: bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()[:16]


def stamp(file: File) -> Stamp:
    """The stamp of a file or folder; raises OSError if it is not there."""
    facts = os.stat(file)  # noqa: PTH116 (fast)
    return facts.st_size, facts.st_mtime_ns


def by_stamp(files: int) -> Callable[[Callable[[F], T]], Callable[[F], T]]:
    """Decorate a function of a file to cache its results for the last `files` files, until they change."""

    def decorate(read: Callable[[F], T]) -> Callable[[F], T]:
        remembered = lru_cache(files)(lambda file, stamp: read(file))
        return wraps(read)(lambda file: remembered(file, stamp(file)))

    return decorate


@by_stamp(1024)
def sha256(file: File) -> str:
    """The SHA-256 of a file."""
    with open(file, "rb") as stream:  # noqa: PTH123 (fast)
        return hashlib.file_digest(stream, "sha256").hexdigest()


@by_stamp(1024)
def md5(file: File) -> str:
    """The md5 of a file, or of its decompressed content if it is a whole .gz."""
    with suppress(gzip.BadGzipFile, EOFError, zlib.error):
        if str(file).endswith(".gz"):
            with gzip.open(file, "rb") as stream:
                return hashlib.file_digest(stream, "md5").hexdigest()
    with open(file, "rb") as stream:  # noqa: PTH123 (fast)
        return hashlib.file_digest(stream, "md5").hexdigest()


@cache
def commit() -> str | None:
    """The git commit of the code, with `+` if files differ from it; None outside a checkout."""
    here = checkout()
    if not (here / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def code_of(*classes: type) -> Code | None:
    """The source of classes when first read, which is the code that this process runs.

    None if every class is defined by the engine or by no file.
    """
    files: dict[str, str] = {}
    for cls in classes:
        files |= _files_of(sys.modules.get(cls.__module__))
    return Code(files=files) if files else None


@cache
def _files_of(module: ModuleType | None) -> dict[str, str]:
    module_file = getattr(module, "__file__", None)
    with suppress(OSError, SyntaxError):
        if module_file and _is_followed(file := Path(module_file).resolve(), file):
            return code_at(file)["files"]
    return {}


def code_at(file: Path) -> Code:
    """The source of a file with the files that it imports; raises OSError and SyntaxError."""
    files, waiting = {}, [file]
    while waiting:
        path = waiting.pop(0)
        if (name := _recorded(path)) not in files:
            source = path.read_bytes()
            files[name] = _digest(source)
            waiting += [found for each in _imports(source) if (found := _imported(each, path))]
    return Code(files=files)


def changed_files(recorded: Code) -> list[str]:
    """The names of the recorded files whose code has changed.

    Raises FileNotFoundError with the name of the class's file if that file is gone.
    """
    first = _here(next(iter(recorded["files"])))
    if not first.is_file():
        raise FileNotFoundError(first.name)
    return [Path(name).name for name, was in recorded["files"].items() if _now(name) != was]


def _now(name: str) -> str | None:
    with suppress(OSError, SyntaxError):
        return _digest(_here(name).read_bytes())
    return None


def differing(one: Code, other: Code) -> list[str]:
    """The names of the files in which two sources differ, regardless of their folders."""
    both = [code["files"] for code in (one, other)]
    if sorted(both[0].values()) == sorted(both[1].values()):
        return []
    return unlike(*({(Path(path).name, was) for path, was in files.items()} for files in both))


def unlike(one: Iterable[tuple[str, str]], other: Iterable[tuple[str, str]]) -> list[str]:
    """Sorted names whose (name, digest) pair is in only one of the two sets."""
    return sorted({name for name, _ in set(one) ^ set(other)})


def combined(code: Code) -> str:
    """A single digest of the source in all files."""
    return digest_of(json.dumps(sorted(code["files"].values())).encode())


def is_of_package(code: Code | str) -> bool:
    """Whether all source files are part of the package; always false for data files."""
    return isinstance(code, dict) and all(
        name.partition("/")[0] in FOLDERS for name in code["files"]
    )


def _recorded(file: Path) -> str:
    above = [folder(name).parent for name in FOLDERS if file.is_relative_to(folder(name))]
    return file.relative_to(above[0]).as_posix() if above else str(file)


def _here(name: str) -> Path:
    top, _, rest = name.partition("/")
    if top in FOLDERS:
        return folder(top) / rest
    places = [root / name for root in _roots()]  # an absolute name does not depend on the root
    return next((place for place in places if place.is_file()), Path(name).absolute())


def _roots() -> list[Path]:
    return [Path(entry) for entry in (working_directory(), *sys.path) if entry]


def _is_followed(file: Path, from_: Path) -> bool:
    if any(file.is_relative_to(folder(name)) for name in FOLDERS):
        return True
    of_engine = file.is_relative_to(checkout() / "oodbench")
    return not of_engine and _installed_top(file) in (None, _installed_top(from_))


def _installed_top(file: Path) -> str | None:
    installed = [i for i, part in enumerate(file.parts) if part in INSTALLED]
    return file.parts[installed[-1] + 1] if installed else None


@lru_cache(4096)
def _digest(source: bytes) -> str:
    return digest_of(json.dumps(_plain(ast.parse(source))).encode())


@lru_cache(4096)
def _imports(source: bytes) -> list[Import]:
    imports: list[Import] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports += [(0, name.name, "") for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [(node.level, node.module or "", name.name) for name in node.names]
    return imports


def _imported(what: Import, by: Path) -> Path | None:
    """`from package import name` may import a module of the package."""
    level, module, name = what
    inner = f"{module}.{name}".strip(".")
    return _find(inner, level, by) or (_find(module, level, by) if name else None)


def _find(module: str, level: int, file: Path) -> Path | None:
    parts = module.split(".") if module else []
    if level:
        roots = [file.parents[level - 1]]
    elif parts[0] == "oodbench":
        roots = [folder(parts[1])] if parts[1:2] and parts[1] in FOLDERS else []
        parts = parts[2:]
    elif parts[0] in sys.stdlib_module_names:
        return None
    else:  # first from where the file's own module is imported: above its outermost package
        above = next(root for root in file.parents if not (root / "__init__.py").is_file())
        roots = [above, *_roots()]
    for base in (root.joinpath(*parts) for root in roots):
        for source in (base / "__init__.py", *([base.with_suffix(".py")] if parts else [])):
            if source.is_file():
                return source.resolve() if _is_followed(source.resolve(), file) else None
    return None


def _plain(node: Any) -> Any:
    """Turn a syntax tree into JSON values that are the same under all versions of Python."""
    if isinstance(node, list):
        return [_plain(each) for each in node if not _says_nothing(each)]
    if isinstance(node, ast.Constant) or not isinstance(node, ast.AST):
        value = node.value if isinstance(node, ast.Constant) else node
        return f"{type(value).__name__} {value!r}"
    fields = {
        name: _plain(value)
        for name in node._fields
        if name not in ("ctx", "type_comment", "type_ignores", "kind")
        and (value := getattr(node, name, None)) not in (None, [])
    }
    return [type(node).__name__, fields]


def _says_nothing(node: Any) -> bool:
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, ast.Pass)
