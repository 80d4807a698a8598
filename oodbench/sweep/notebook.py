"""Classes of a script or a notebook as modules in a results directory, which workers import.

A worker is another process, and does not run the script again. So the source of each class is written into
OUT/plugins/saved_NAME.py, with the imports and constants that it uses; other
objects of `__main__` that it uses become such modules too. Beside it saved_NAME.origin has the script's
lines, which errors name. Digests are taken of these files: editing a
class makes its runs stale, editing the rest of the script does not.
"""

import ast
import json
import symtable
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from oodbench.errors import ORIGIN, UserError
from oodbench.files import write_whole
from oodbench.results.directory import Directory

MAIN = "__main__"
FOLDER, PREFIX = "plugins", "saved_"
ELSE = "write it into a file of its own, and import that"


def saved_file(out: Path, cls: type) -> Path:
    """The file of a class of `__main__` in a results directory."""
    return out / FOLDER / f"{PREFIX}{cls.__name__}.py"


def made_folder(out: Path, name: str) -> Path:
    """A folder of a results directory; raises UserError if `out` is a folder of something else."""
    Directory(out).plan_lock()
    (out / name).mkdir(exist_ok=True)
    return out / name


@contextmanager
def as_modules(classes: Mapping[type, str], out: Path) -> Iterator[list[str]]:
    """Let classes of `__main__` be of modules that workers can import, whose names are yielded.

    `classes` has the lines that register each. Raises UserError for a class whose source is not known.
    """
    path = [*sys.path]
    modules = {cls: ModuleType(f"{PREFIX}{cls.__name__}") for cls in classes}
    written: set[str] = set()
    for cls in modules:
        _write(cls, out, classes, written)
    for cls, module in modules.items():
        module.__file__ = str(saved_file(out, cls))
        setattr(module, cls.__name__, cls)
        sys.modules[module.__name__] = module
        cls.__module__ = module.__name__
    if (out / FOLDER).is_dir():
        sys.path.append(str((out / FOLDER).absolute()))
    try:
        yield [module.__name__ for module in modules.values()]
    finally:
        sys.path[:] = path
        for cls, module in modules.items():
            cls.__module__ = MAIN
            sys.modules.pop(module.__name__)


def _write(value: Any, out: Path, footers: Mapping[type, str], written: set[str]) -> None:
    if value.__name__ in written:
        return
    written.add(value.__name__)
    node, source = _definition(value.__name__)
    text, names = ast.unparse(node), vars(sys.modules[MAIN])
    lines = []
    for name in sorted(_global_names(text) & names.keys() - {value.__name__}):
        if _is_of_main(used := names[name]):
            _write(used, out, footers, written)
            lines.append(f"from {PREFIX}{used.__name__} import {used.__name__} as {name}")
        elif not name.startswith("__"):
            lines.append(_imported(name, used) or _constant(name, used, value.__name__))
    made_folder(out, FOLDER)
    file = saved_file(out, value)
    write_whole(file, "\n".join([*lines, "", "", text, "", footers.get(value, ""), ""]))
    origin = {"file": source, "lines": _origins(node, text, len(lines) + 2)}
    write_whole(file.with_suffix(ORIGIN), json.dumps(origin))


def _origins(node: ast.stmt, text: str, before: int) -> dict[int, int]:
    """The script's line for each line of `text`, the same syntax tree, which follows `before` lines."""
    found: dict[int, int] = {}
    for ours, copied in zip(ast.walk(node), ast.walk(ast.parse(text).body[0]), strict=False):
        if isinstance(copied, ast.stmt | ast.expr) and isinstance(ours, ast.stmt | ast.expr):
            found.setdefault(copied.lineno + before, ours.lineno)
    return found


def _is_of_main(value: Any) -> bool:
    return getattr(value, "__module__", None) == MAIN and hasattr(value, "__name__")


def _definition(name: str) -> tuple[ast.stmt, str]:
    """The last definition of a class or function in the script or the notebook, and its file or cell."""
    main = vars(sys.modules[MAIN])
    texts: dict[str, str] = {}
    if "In" in main and "get_ipython" in main:
        shell = main["get_ipython"]()
        texts = {f"In[{i}]": shell.transform_cell(cell) for i, cell in enumerate(main["In"])}
    elif file := main.get("__file__"):
        texts = {str(Path(file).absolute()): Path(file).read_text(encoding="utf-8")}
    for source, text in reversed(texts.items()):
        with suppress(SyntaxError):
            for node in reversed(ast.parse(text).body):
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                    return node, source
    raise UserError(f"the source of {name}, which {MAIN} defines, is not known here: {ELSE}")


def _global_names(text: str) -> set[str]:
    tables, names = [symtable.symtable(text, MAIN, "exec")], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used = (s for s in table.get_symbols() if s.is_global() and s.is_referenced())
        names.update(symbol.get_name() for symbol in used)
    return names


def _imported(name: str, value: Any) -> str | None:
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    home = getattr(value, "__module__", None)
    for there in (name, getattr(value, "__name__", name)):
        if home and getattr(sys.modules.get(home), there, None) is value:
            return f"from {home} import {there} as {name}"
    return None


def _constant(name: str, value: Any, user: str) -> str:
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if bool(ast.literal_eval(repr(value)) == value):
            return f"{name} = {value!r}"
    raise UserError(
        f"{user} uses `{name}`, which is neither imported nor a plain constant, and cannot be given to "
        f"other processes: {ELSE}"
    )
