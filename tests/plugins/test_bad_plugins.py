"""A plug-in that raises or returns nonsense costs one sentence in every command, never a traceback."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from oodbench.report import __main__ as report
from oodbench.sweep import __main__ as sweep
from oodbench.train.process import clean_process
from tests.helpers.algorithms.plugins import plugins_in
from tests.plugins.bad_plugins import BAD, module

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


CASES = [pytest.param(n, marks=[pytest.mark.nightly] * (i % 6 > 0)) for i, n in enumerate(BAD)]
"""Every sixth one is quick enough for each check."""


@pytest.mark.parametrize("name", CASES)
def test_a_bad_plugin_costs_no_traceback(name: str, tmp_path: Path) -> None:
    (tmp_path / "bad_plugin.py").write_text(module(name))
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(SWEEP | NAMED[name.partition(",")[0]]))
    with plugins_in(tmp_path, "bad_plugin"), clean_process(1), warnings.catch_warnings():
        warnings.simplefilter("default")
        text = "".join(told(CliRunner().invoke(app, line)) for app, line in commands(name))
    assert "on purpose" not in text or "bad_plugin.py:" in text
