"""The code, libraries and machine behind a number.

Code counts without comments, docstrings and formatting. The source is read, never imported, so that a
report can ask whether a method is still the one that trained its runs. The code of a class is the file that
defines it and, directly or not, the files that it imports: not the standard library, installed packages or
the package's own engine, for which the version stands.
"""

import ast
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from oodbench.arithmetic import in_force
from oodbench.registry import checkout, folder
from oodbench.version import __version__

OF_THE_CODE = ("oodbench", "commit", "digests")
"""The keys of a provenance that name the code and data of a run."""


@cache
def commit() -> str | None:
    """Return the git commit of the code, with `+` if files differ from it; None outside a checkout."""
    here = checkout()
    if (here / "COMMIT").is_file():  # a frozen copy
        return (here / "COMMIT").read_text().strip() or None
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


def slurm_job() -> str | None:
    """Return the Slurm job that this process is part of, as `id` or `array_index`; None outside of one."""
    array, index = (os.environ.get(f"SLURM_ARRAY_{n}_ID") for n in ("JOB", "TASK"))
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID")


@cache
def machine() -> str:
    """Return the kind of processor, as far as the system names it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{platform.machine()}, {line.partition(':')[2].strip()}"
    return ", ".join(filter(None, (platform.machine(), platform.processor())))


def provenance(device: str, threads: int, plugins: Sequence[str]) -> dict[str, Any]:
    """Return what the training process records beside a run's spec; no part of the run's identity."""
    return {
        "oodbench": __version__,
        "commit": commit(),
        "plugins": list(plugins),
        "torch": version("torch"),
        "python": platform.python_version(),
        "host": platform.node(),
        "machine": machine(),
        "arithmetic": in_force(),
        "device": device,
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "slurm_job": slurm_job(),
        "threads": threads,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def begun_by(made_by: Mapping[str, Any], begun: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance `made_by` of a resumed run, but with the code and data it was begun with."""
    rest = {name: value for name, value in made_by.items() if name not in OF_THE_CODE}
    return rest | {name: begun[name] for name in OF_THE_CODE if name in begun}


def method_digest(provenance: Mapping[str, Any]) -> str | None:
    """Return a digest of the source of the method that trained a run; None where it was not recorded.

    The frozen runs of a board have it as `source`.
    """
    method = provenance.get("digests", {}).get("method")
    return combined(method) if method else provenance.get("source")


def code(provenance: Mapping[str, Any]) -> str:
    """Return the version and commit that trained a run."""
    if "code" in provenance:
        return str(provenance["code"])
    commit = str(provenance.get("commit") or "no commit")
    short = commit[:12] + ("+" if commit[12:].endswith("+") else "")
    return f"oodbench {provenance.get('oodbench', '?')} ({short})"


def versions(provenances: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the versions of the package that trained some runs, each once."""
    return list(dict.fromkeys(str(made.get("oodbench", "?")) for made in provenances if made))


def made_by(provenances: Iterable[Mapping[str, Any]]) -> str:
    """Return versions and machine that trained some runs: `oodbench 0.2.0, torch 2.15.0, Intel Xeon`."""
    known = [made for made in provenances if made]
    columns = (
        [str(made.get("code", f"oodbench {made.get('oodbench', '?')}")) for made in known],
        [f"torch {made['torch']}" for made in known if "torch" in made],
        [processor(str(made["machine"])) for made in known if "machine" in made],
        [d for made in known if (d := str(made.get("device", "cpu")).partition(":")[0]) != "cpu"],
        [f"{made['arithmetic']} arithmetic" for made in known if "arithmetic" in made],
    )
    return ", ".join(" and ".join(dict.fromkeys(texts)) for texts in columns if texts)


def processor(machine: str) -> str:
    """Return the processor of a `machine()` by its short name: `Intel Xeon`, `AMD EPYC 7B13`."""
    name = re.sub(r"^x86_64, |\((?:R|TM)\)| CPU| \d+-Core| Processor| @ .*", "", machine)
    return " ".join(name.split())


FOLDERS = ("algorithms", "datasets")
"""The folders of the package whose files are followed."""
INSTALLED = ("site-packages", "dist-packages")


class Code(TypedDict):
    """The source of a class."""

    files: dict[str, str]
    """A digest of each file, without what says nothing; the first file defines the class."""
    bytes: dict[str, str]
    """A digest of each file as it is, which is quicker to compare."""


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
    """Return the source of a class; None if no file defines it, or a file of the engine does."""
    if cls not in _CODES:
        _CODES[cls] = None
        module_file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        with suppress(OSError, SyntaxError):
            if module_file is not None:
                file = Path(module_file).resolve()
                _CODES[cls] = code_at(file) if _is_followed(file, file) else None
    return _CODES[cls]


def code_at(file: Path) -> Code:
    """Return the source of a file with the files that it imports; raises OSError and SyntaxError."""
    code, waiting = Code(files={}, bytes={}), [file]
    while waiting:
        path = waiting.pop(0)
        if (name := _recorded(path)) not in code["files"]:
            content = path.read_bytes()
            tree = ast.parse(content, str(path))
            code["files"][name], code["bytes"][name] = _digest(_plain(tree)), _sha256(content)
            waiting += _imported(tree, path)
    return code


def joined(first: Code, second: Code) -> Code:
    """Return the source of two classes."""
    return Code(
        files={**first["files"], **second["files"]}, bytes={**first["bytes"], **second["bytes"]}
    )


def changed_files(recorded: Code) -> list[str]:
    """Return the names of the recorded files that are no longer what they were.

    Raises FileNotFoundError with the name of the class's file if that file is gone.
    """
    first = _here(next(iter(recorded["files"])))
    if not first.is_file():
        raise FileNotFoundError(first.name)
    return [Path(name).name for name in recorded["files"] if not _is_same(recorded, name)]


def _is_same(recorded: Code, name: str) -> bool:
    """Return whether a file computes what it did."""
    with suppress(OSError, SyntaxError):
        content = _here(name).read_bytes()
        if _sha256(content) == recorded["bytes"][name]:
            return True
        return _digest(_plain(ast.parse(content))) == recorded["files"][name]
    return False


def differing(one: Code, other: Code) -> list[str]:
    """Return the names of the files in which two sources differ, wherever the files are."""
    both = [code["files"] for code in (one, other)]
    if sorted(both[0].values()) == sorted(both[1].values()):
        return []
    named = [{(Path(path).name, digest) for path, digest in files.items()} for files in both]
    return sorted({name for name, _ in named[0] ^ named[1]})


def combined(code: Code) -> str:
    """Return one digest of the source in all files."""
    return _digest(sorted(code["files"].values()))


def is_of_package(code: Code | str) -> bool:
    """Return whether all of the source is the package's; always false for data files."""
    return isinstance(code, dict) and all(
        name.partition("/")[0] in FOLDERS for name in code["files"]
    )


def _recorded(file: Path) -> str:
    """Return a file as it is recorded: relative to the package's folders or a snapshot, else absolute."""
    for name in FOLDERS:
        if file.is_relative_to(folder(name)):
            return f"{name}/{file.relative_to(folder(name)).as_posix()}"
    if (checkout() / "COMMIT").is_file() and file.is_relative_to(checkout()):
        return file.relative_to(checkout()).as_posix()
    return str(file)


def _here(name: str) -> Path:
    """Return the file that was recorded under a name; one of a snapshot is where Python would find it."""
    top, _, rest = name.partition("/")
    if top in FOLDERS:
        return folder(top) / rest
    if Path(name).is_absolute():
        return Path(name)
    return next((p for root in _roots() if (p := root / name).is_file()), Path(name).absolute())


def _roots() -> Iterator[Path]:
    """Yield the folders in which Python looks for modules, the working directory first."""
    with suppress(FileNotFoundError):  # it has been deleted
        yield Path.cwd()
    yield from (Path(entry) for entry in sys.path if entry)


def _is_followed(file: Path, from_: Path) -> bool:
    """Return whether the code in a file counts as part of a class in the file `from_`."""
    if any(file.is_relative_to(folder(name)) for name in FOLDERS):
        return True
    if file.is_relative_to(checkout() / "oodbench"):
        return False
    tops = [_installed_top(path) for path in (file, from_)]
    return tops[0] is None or tops[0] == tops[1]


def _installed_top(file: Path) -> str | None:
    """Return the name of the installed package that a file is of, if it is of one."""
    parts = file.parts
    installed = [i for i, part in enumerate(parts) if part in INSTALLED]
    return parts[installed[-1] + 1] if installed else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _digest(value: Any) -> str:
    return _sha256(json.dumps(value).encode())


def _imported(tree: ast.Module, file: Path) -> Iterator[Path]:
    """Yield the files to follow among those that a file imports, at its top or in a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [_find(name.name, 0, file) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            inner = [f"{module}.{name.name}".strip(".") for name in node.names]
            of_module = _find(module, node.level, file)
            found = [_find(name, node.level, file) or of_module for name in inner]
        else:
            continue
        yield from (source for source in found if source)


def _find(module: str, level: int, file: Path) -> Path | None:
    """Return the file of a module that the file `file` imports, if it is to be followed."""
    parts = module.split(".") if module else []
    roots: Iterable[Path]
    if level:
        roots = [file.parents[level - 1]]
    elif parts[0] == "oodbench":
        roots = [folder(parts[1])] if parts[1:2] and parts[1] in FOLDERS else []
        parts = parts[2:]
    elif parts[0] in sys.stdlib_module_names:
        return None
    else:
        roots = [_root(file), *_roots()]
    for base in (root.joinpath(*parts) for root in roots):
        for source in (base / "__init__.py", *([base.with_suffix(".py")] if parts else [])):
            if source.is_file():
                return source.resolve() if _is_followed(source.resolve(), file) else None
    return None


def _root(file: Path) -> Path:
    """Return the folder from which a file's module is imported: the first above it that is no package."""
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def _plain(node: Any) -> Any:
    """Return a syntax tree as values of JSON, alike under all versions of Python."""
    if isinstance(node, list):
        return [_plain(each) for each in node if not _says_nothing(each)]
    if isinstance(node, ast.Constant) or not isinstance(node, ast.AST):
        value = node.value if isinstance(node, ast.Constant) else node
        return f"{type(value).__name__} {value!r}"
    fields = {
        name: _plain(value)
        for name, value in ast.iter_fields(node)
        if name not in ("ctx", "type_comment", "type_ignores", "kind") and value not in (None, [])
    }
    return [type(node).__name__, fields]


def _says_nothing(node: Any) -> bool:
    """Return whether a statement is a docstring or another constant, or `pass`."""
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant or isinstance(node, ast.Pass)
