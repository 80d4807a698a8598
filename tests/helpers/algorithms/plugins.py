"""Plug-ins of a test: modules that are found in its folder, and forgotten afterwards."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.metrics import metrics
from oodbench.networks.base import networks
from oodbench.registry import Registry
from oodbench.selection import selection_rules
from oodbench.sweep.launchers import launchers
from tests.helpers.paths import blocks

REGISTRIES: tuple[Registry[Any], ...] = (
    *(algorithms, datasets, metrics, networks, selection_rules, launchers),
)


@contextmanager
def plugins_in(folder: Path, *modules: str) -> Iterator[None]:
    """Work in `folder`, where these modules are imported anew and alone register classes of a user's."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in REGISTRIES:
            ours = {n: c for n, c in registry.items() if c.__module__.startswith("oodbench.")}
            patch.setattr(registry, "_classes", ours)
        for module in modules:
            sys.modules.pop(module, None)
        patch.setattr(sys, "dont_write_bytecode", True)  # which tells versions apart by seconds
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(folder), *sys.path])
        yield
        for module in modules:
            sys.modules.pop(module, None)


@contextmanager
def rules_of_the_guide() -> Iterator[None]:
    """Register `worst_val` and `smooth_val`, which the guide defines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection_rules, "_classes", dict(selection_rules.items()))
        for code in blocks("docs/guide/protocol.md"):
            exec(code, {"__name__": "rules_of_the_guide"})
        yield
