"""What README.md shows works as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from tests.helpers.paths import ROOT

PLACES = ("Leiden", "Rotterdam", "Utrecht")
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_its_sweeps_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ("nodes,target,environment", *(f"{n},{n % 2},{e}" for n in range(9) for e in PLACES))
    Path("patients.csv").write_text("\n".join(rows) + "\n")
    first, second = (validate(yaml.safe_load(text), "README.md") for text in blocks("yaml"))
    assert len(make_plan(first).runs) == 5 * 3 * 5
    assert len(make_plan(second).runs) == 3 * 3


def without_numbers(text: str) -> list[str]:
    """The lines of a text, blank but for their words."""
    return [" ".join(re.sub(r"[\d.±─]+", " ", line).split()) for line in text.splitlines()]


@pytest.mark.slow
def test_its_sweep_prints_its_leaderboard(tmp_path: Path) -> None:
    """Line by line, but for the numbers of another machine; fewer steps, and the rows in any order."""
    (tmp_path / "mine.yaml").write_text(blocks("yaml")[0])
    launch = ["launch", "mine.yaml", "--yes", "--workers", "1", "--set", "steps=20"]
    command = [sys.executable, "-m", "oodbench.sweep", *launch]
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (shown,) = blocks("text")
    shown, _, _ = shown.partition("Bold")  # which marks there are depends on the numbers
    assert set(without_numbers(shown)) <= set(without_numbers(done.stdout))


@pytest.mark.slow
def test_its_algorithm_runs_as_a_plug_in(tmp_path: Path) -> None:
    (method,) = blocks("python")
    (tmp_path / "my_method.py").write_text(method)
    sweep = {"name": "mine", "datasets": ["Spirals"], "algorithms": ["ERM", "MySD"], "trials": 2}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(sweep | {"steps": 40}))
    command = [sys.executable, "-m", "oodbench.sweep", "launch", "mine.yaml", "--yes"]
    command += ["--plugin", "my_method", "--workers", "1"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 done of 4 runs" in done.stdout
    check = "import my_method; from oodbench.conformance import check_algorithm; check_algorithm('MySD')"
    command = [sys.executable, "-c", check]
    checked = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
