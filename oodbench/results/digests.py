"""Digests of a class's source code, without comments, docstrings and formatting.

The source is read, never imported, so that a report can ask whether a method is still the one that trained
its runs. A digest covers the class and whatever it names at the top level of its file, and follows imports
into other files, but not into the standard library, installed packages or the package's own engine, for
which the version stands.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from oodbench.registry import checkout, folder

FOLDERS = ("algorithms", "datasets")
"""The folders of the package whose files are followed."""
INSTALLED = ("site-packages", "dist-packages")
WHOLE = "*"
"""The name that stands for all names of a file."""
STAR = "import *"
"""The name under which the names that `import *` binds are recorded."""
Name = tuple[Path, str]


class Code(TypedDict):
    """The source of some classes."""

    classes: list[str]
    """Where each class is defined, as FILE:CLASS."""
    files: dict[str, str]
    """A digest of what the classes need of each file."""
    bytes: str
    """A digest of the same files as they are, which is quicker to compare."""


class Digests(TypedDict, total=False):
    """The digests of the code and data that a run was trained with."""

    method: Code
    network: Code
    """The digest of a network that is not the package's."""
    dataset: Code
    files: str
    """The digest of the files that the data come from, see `oodbench.results.data_files`."""


_CODES: dict[type, Code | None] = {}
"""The source of classes as it was when it was first asked for, which is what this process runs."""


def code_of(cls: type) -> Code | None:
    """The source of a class; None for one that no file defines, or that is part of the engine."""
    if cls not in _CODES:
        _CODES[cls] = _code_of(cls)
    return _CODES[cls]


def _code_of(cls: type) -> Code | None:
    module_file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    with suppress(OSError, SyntaxError):
        if module_file is not None:
            file = Path(module_file).resolve()
            if _is_followed(file, file):
                return code_at([f"{_recorded(file)}:{cls.__qualname__}"])
    return None


def code_at(classes: Sequence[str], known: Iterable[str] = ()) -> Code:
    """The source of the classes at FILE:CLASS; imports are looked for among the files `known` first.

    Raises OSError for a file that is not there, and SyntaxError.
    """
    closure = _Closure([file for name in known if (file := _here(name)).is_file()])
    for place in classes:
        name, _, cls = place.rpartition(":")
        closure.add(_here(name), cls.partition(".")[0])
    files = {_recorded(file): _digest(texts) for file, texts in closure.texts()}
    return Code(classes=list(classes), files=files, bytes=_bytes_of(files))


def changed_files(recorded: Code) -> list[str]:
    """The names of the files in which recorded classes are no longer what they were.

    Raises FileNotFoundError with the name of a class's file if that file is gone.
    """
    for place in recorded["classes"]:
        if not (file := _here(place.rpartition(":")[0])).is_file():
            raise FileNotFoundError(file.name)
    with suppress(OSError):
        if _bytes_of(recorded["files"]) == recorded["bytes"]:
            return []
    try:
        return differing(recorded, code_at(recorded["classes"], recorded["files"]))
    except SyntaxError as error:
        return [Path(error.filename or "").name]


def differing(one: Code, other: Code) -> list[str]:
    """The names of the files in which two sources differ, wherever the files are."""
    both = [code["files"] for code in (one, other)]
    if sorted(both[0].values()) == sorted(both[1].values()):
        return []
    named = [{(Path(path).name, digest) for path, digest in files.items()} for files in both]
    return sorted({name for name, _ in named[0] ^ named[1]})


def combined(code: Code) -> str:
    """One digest of the source in all files."""
    return _digest(sorted(code["files"].values()))


def is_of_package(code: Code | str) -> bool:
    """Whether all of the source is the package's; always false for data files."""
    return isinstance(code, dict) and all(
        name.partition("/")[0] in FOLDERS for name in code["files"]
    )


def _recorded(file: Path) -> str:
    """A file as it is recorded: relative to the package's folders or to a snapshot, else absolute."""
    for name in FOLDERS:
        if file.is_relative_to(folder(name)):
            return f"{name}/{file.relative_to(folder(name)).as_posix()}"
    if (checkout() / "COMMIT").is_file() and file.is_relative_to(checkout()):
        return file.relative_to(checkout()).as_posix()
    return str(file)


def _here(name: str) -> Path:
    """The file that was recorded under a name; one of a snapshot is where Python would find it."""
    top, _, rest = name.partition("/")
    if top in FOLDERS:
        return folder(top) / rest
    if Path(name).is_absolute():
        return Path(name)
    return next((p for root in _roots() if (p := root / name).is_file()), Path(name).absolute())


def _roots() -> Iterator[Path]:
    """The folders in which Python looks for modules, the working directory first."""
    with suppress(FileNotFoundError):  # it has been deleted
        yield Path.cwd()
    yield from (Path(entry) for entry in sys.path if entry)


def _is_followed(file: Path, from_: Path) -> bool:
    """Whether the code in a file counts as part of a class in the file `from_`."""
    if any(file.is_relative_to(folder(name)) for name in FOLDERS):
        return True
    if file.is_relative_to(checkout() / "oodbench"):
        return False
    tops = [_installed_top(path) for path in (file, from_)]
    return tops[0] is None or tops[0] == tops[1]


def _installed_top(file: Path) -> str | None:
    """The name of the installed package that a file is of, if it is of one."""
    parts = file.parts
    places = [i for i, part in enumerate(parts) if part in INSTALLED]
    return parts[places[-1] + 1] if places else None


def _bytes_of(files: Iterable[str]) -> str:
    """A digest of the files' bytes; raises OSError."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(hashlib.sha256(_here(name).read_bytes()).digest())
    return digest.hexdigest()[:16]


def _digest(texts: Iterable[Any]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()[:16]


@dataclass
class _Module:
    """The statements of a file, and which of them define or change each of its names."""

    file: Path
    statements: list[ast.stmt]
    names: dict[str, list[int]] = field(default_factory=dict)
    """The indices of the statements of each name, and under "" of those that define none."""
    imports: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    """The module, level and name (or WHOLE) that each imported name stands for."""


def _module(file: Path) -> _Module:
    stat = file.stat()
    return _parsed(file, stat.st_mtime_ns, stat.st_size)


@cache
def _parsed(file: Path, changed: int, size: int) -> _Module:
    tree = ast.parse(file.read_bytes(), str(file))
    module = _Module(file, [s for s in tree.body if not (_says_nothing(s) or _is_main(s))])
    for place, statement in enumerate(module.statements):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            module.imports |= _imported(statement)
            continue
        for name in _defined(statement) or {""}:
            module.names.setdefault(name, []).append(place)
    return module


def _says_nothing(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring or another constant, or `pass`."""
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass)


def _is_main(statement: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == "__main__"`, which no import runs."""
    return isinstance(statement, ast.If) and ast.unparse(statement.test).startswith("__name__ ==")


def _imported(statement: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, int, str]]:
    """Each name that an import binds -> the object that it refers to."""
    if isinstance(statement, ast.Import):
        return {a.asname or a.name.partition(".")[0]: (a.name, 0, WHOLE) for a in statement.names}
    module, level = statement.module or "", statement.level
    return {
        STAR if a.name == WHOLE else a.asname or a.name: (module, level, a.name)
        for a in statement.names
    }


def _defined(statement: ast.stmt) -> set[str]:
    """The names of a file that a statement defines or changes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            names |= {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= _imported(node).keys()
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def _used(statement: ast.stmt) -> dict[str, set[str]]:
    """The names that a statement mentions, each with the attributes taken of it (WHOLE: it alone)."""
    used: dict[str, set[str]] = {}
    of_attributes: set[int] = set()
    for node in ast.walk(statement):  # a node comes before what it holds
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, set()).add(node.attr)
            of_attributes.add(id(node.value))
        elif isinstance(node, ast.Name) and id(node) not in of_attributes:
            used.setdefault(node.id, set()).add(WHOLE)
    return used


class _Closure:
    """The statements that some names need, in their own files and in those that are imported."""

    def __init__(self, known: Collection[Path]) -> None:
        self._known = known
        self._statements: dict[Path, set[int]] = {}
        self._imports: dict[Path, set[tuple[str, int, str]]] = {}
        self._done: set[Name] = set()

    def texts(self) -> Iterator[tuple[Path, Iterator[Any]]]:
        """The files, each with its imports and statements as values of JSON."""
        for file, places in self._statements.items():
            module = _module(file)
            statements = (_plain(module.statements[place]) for place in sorted(places))
            yield file, iter([sorted(self._imports[file]), *statements])

    def add(self, file: Path, name: str) -> None:
        """Add what a name of a file needs; all of the file if it defines no such name."""
        waiting: list[Name] = [(file, name)]
        while waiting:
            place = waiting.pop()
            if place not in self._done:
                self._done.add(place)
                waiting += self._needed(*place)

    def _needed(self, file: Path, name: str) -> Iterator[Name]:
        """Add the statements of a name, and yield the names that they need."""
        module = _module(file)
        if file not in self._statements:
            self._statements[file], self._imports[file] = set(), set()
            yield file, ""
        if name in module.imports:
            yield from self._followed(module, name, {WHOLE})
        elif name in module.names or not name:
            places = module.names.get(name, [])
            self._statements[file].update(places)
            for place in places:
                yield from self._needed_by(module, module.statements[place])
        else:
            yield from ((file, each) for each in (*module.names, *module.imports))

    def _needed_by(self, module: _Module, statement: ast.stmt) -> Iterator[Name]:
        for name, attributes in _used(statement).items():
            if name in module.imports:
                yield from self._followed(module, name, attributes)
            elif name in module.names:
                yield module.file, name
            elif STAR in module.imports:
                yield from self._followed(module, STAR, {WHOLE})
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for target in _imported(node).values():
                    yield from self._targets(module.file, target, {WHOLE})

    def _followed(self, module: _Module, name: str, attributes: set[str]) -> Iterator[Name]:
        """Note an import that is used, and yield what it needs of another file."""
        self._imports[module.file].add(module.imports[name])
        yield from self._targets(module.file, module.imports[name], attributes)

    def _targets(
        self, file: Path, target: tuple[str, int, str], attributes: set[str]
    ) -> Iterator[Name]:
        module, level, name = target
        inner = f"{module}.{name}".strip(".") if name != WHOLE else ""
        if inner and (source := self._find(inner, level, file)):  # a module of a package
            yield from ((source, attribute) for attribute in attributes)
        elif source := self._find(module, level, file):
            names = {name} if name != WHOLE else attributes
            yield from ((source, each) for each in names)

    def _find(self, module: str, level: int, file: Path) -> Path | None:
        """The file of a module that the file `file` imports, if it is to be followed."""
        parts = module.split(".") if module else []
        if level:
            roots: Iterable[Path] = [file.parents[level - 1]]
        elif parts[0] == "oodbench":
            roots, parts = (
                [folder(parts[1])] if parts[1:2] and parts[1] in FOLDERS else [],
                parts[2:],
            )
        elif parts[0] in sys.stdlib_module_names:
            return None
        else:
            ends = Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")
            for known in self._known:
                if any(known.parts[-len(end.parts) :] == end.parts for end in ends):
                    return known
            roots = [_root(file), *_roots()]
        for base in (root.joinpath(*parts) for root in roots):
            for source in (base / "__init__.py", *([base.with_suffix(".py")] if parts else [])):
                if source.is_file():
                    return source.resolve() if _is_followed(source.resolve(), file) else None
        return None


def _root(file: Path) -> Path:
    """The folder from which a file's module is imported: the first above it that is no package."""
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def _plain(node: Any) -> Any:
    """A syntax tree as values of JSON, the same for all versions of Python; without what says nothing."""
    if isinstance(node, list):
        return [
            _plain(each)
            for each in node
            if not (isinstance(each, ast.stmt) and _says_nothing(each))
        ]
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__} {node!r}"
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {node.value!r}"
    fields = {
        name: _plain(value)
        for name, value in ast.iter_fields(node)
        if name not in ("ctx", "type_comment", "kind") and value not in (None, [])
    }
    return [type(node).__name__, fields]
