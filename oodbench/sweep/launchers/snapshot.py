"""The code of a launch: its fingerprint, and a snapshot of it."""

import hashlib
import importlib.util
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from oodbench.files import whole_folder
from oodbench.registry import checkout
from oodbench.results.provenance import commit

FOLDERS = ("oodbench", "algorithms", "datasets", "sweeps", "pyproject.toml")
"""What of a checkout runs need; of an installed wheel, the package alone."""


def fingerprint(plugins: Iterable[str]) -> str:
    """A hash of every Python file that a run may execute, plug-ins included."""
    digest = hashlib.sha256()
    for name, path in sorted(_files(plugins)):
        if path.suffix == ".py":
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def take_snapshot(folder: Path, plugins: Iterable[str]) -> Path:
    """Copy the code into a folder of its own under `folder`; returns what goes on PYTHONPATH."""
    plugins = tuple(plugins)
    target = folder / fingerprint(plugins)
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with whole_folder(target) as temporary:
        for name, path in _files(plugins):
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, temporary / name)
        (temporary / "COMMIT").write_text(commit() or "")
    return target


def _files(plugins: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Every file of the code by its name relative to a folder on the path."""
    for name, source in _sources(plugins):
        for path in source.rglob("*") if source.is_dir() else [source]:
            inner = path.relative_to(source)
            hidden = any(p.startswith(".") or p == "__pycache__" for p in inner.parts)
            if path.is_file() and not hidden:
                yield str(name / inner), path


def _sources(plugins: Iterable[str]) -> Iterator[tuple[Path, Path]]:
    """Files and folders of code by their names relative to a folder on the path."""
    root = checkout()
    is_checkout = (root / "pyproject.toml").is_file()
    for name in FOLDERS if is_checkout else FOLDERS[:1]:
        yield Path(name), root / name
    for plugin in sorted(plugins):
        top = importlib.util.find_spec(plugin.partition(".")[0])
        if top is None or top.name == "oodbench":
            continue
        # a folder without __init__.py may hold anything: of it, the plug-in alone
        spec = top if top.origin is not None else importlib.util.find_spec(plugin)
        if spec is None or spec.origin is None:
            continue
        origin, parts = Path(spec.origin), spec.name.split(".")
        if origin.name == "__init__.py":
            yield Path(*parts), origin.parent
        else:
            yield Path(*parts).with_suffix(origin.suffix), origin
