"""A plug-in that raises or returns nonsense costs one sentence in every command, never a traceback."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.metrics import metrics
from oodbench.networks.base import networks
from oodbench.registry import Registry
from oodbench.report import cli as report
from oodbench.selection import selection_rules
from oodbench.sweep import cli as sweep
from oodbench.sweep.launchers import launchers
from oodbench.train.process import clean_process
from tests.plugins.bad_plugins import BAD, module

REGISTRIES: tuple[Registry[Any], ...] = (
    *(algorithms, datasets, metrics, networks, selection_rules, launchers),
)
SWEEP: dict[str, Any] = {
    "name": "bad",
    "plugins": ["bad_plugin"],
    "datasets": [{"name": "LinearSEM", "num_examples": 20}],
    "algorithms": ["ERM"],
    "trials": 1,
    "steps": 2,
}
NAMED: dict[str, dict[str, Any]] = {
    "method": {"algorithms": ["ERM", "Bad"]},
    "own step": {"algorithms": ["ERM", "Bad"]},
    "dataset": {"datasets": ["Bad"]},
    "network": {"network": "Bad"},
    "rule": {"selection": "bad", "keep_weights": ["bad"]},
    "metric": {},
    "launcher": {},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory; what a plug-in registers there is forgotten afterwards."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_classes", dict(registry.items()))
    monkeypatch.delitem(sys.modules, "bad_plugin", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    return tmp_path


def commands(name: str) -> list[tuple[Any, list[str]]]:
    """The commands that meet a plug-in: plan, launch, status and table."""
    kind = name.partition(",")[0]
    launcher = "bad" if kind == "launcher" else "debug"
    launch = ["launch", "bad.yaml", "--out", "out", "--yes", "--launcher", launcher]
    shown = ["--metric", "bad"] if kind == "metric" else []
    return [
        (sweep.app, ["plan", "bad.yaml"]),
        (sweep.app, [*launch, "--keep-predictions"]),
        (sweep.app, ["status", "out"]),
        (report.app, ["table", "out", *shown]),
    ]


def told(result: Result) -> str:
    """What a command printed; fails unless it ended as a command does."""
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    assert "Traceback" not in result.output
    return result.output


CASES = [
    pytest.param(name, marks=[pytest.mark.nightly] * (i % 6 > 0)) for i, name in enumerate(BAD)
]
"""Every sixth one is quick enough for each check."""


@pytest.mark.parametrize("name", CASES)
def test_a_bad_plugin_costs_no_traceback(name: str, folder: Path) -> None:
    (folder / "bad_plugin.py").write_text(module(name))
    (folder / "bad.yaml").write_text(yaml.safe_dump(SWEEP | NAMED[name.partition(",")[0]]))
    with clean_process(1), warnings.catch_warnings():
        warnings.simplefilter("default")
        text = "".join(told(CliRunner().invoke(app, line)) for app, line in commands(name))
    assert "on purpose" not in text or "bad_plugin.py:" in text
