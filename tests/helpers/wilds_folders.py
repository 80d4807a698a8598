"""What the copies of the sets of WILDS have in common."""

import importlib
from pathlib import Path
from typing import Any

from oodbench.data.wilds import package


def start(root: Path, name: str, version: str) -> Path:
    folder = root / f"{name}_v{version}"
    folder.mkdir(parents=True)
    (folder / f"RELEASE_v{version}.txt").touch()
    return folder


def from_package(module: str, name: str) -> Any:
    package()
    return getattr(importlib.import_module(f"wilds.datasets.{module}"), name)
