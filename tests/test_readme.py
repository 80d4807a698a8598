"""What README.md shows works as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from tests.helpers.paths import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_its_table_names_what_the_registry_holds() -> None:
    row = next(line for line in README.splitlines() if line.startswith("| ERM"))
    named = {name.strip() for cell in row.strip("|").split("|") for name in cell.split(",")}
    classes = [(n, r.get(n)) for r in (algorithms, datasets) for n in r]
    assert named == {n for n, cls in classes if cls.__module__.startswith("oodbench.")}


def test_its_sweep_can_be_planned() -> None:
    (text,) = blocks("yaml")
    plan = make_plan(validate(yaml.safe_load(text), "README.md"))
    assert len(plan.runs) == 2 * 3 * 3 * 5


@pytest.mark.slow
def test_its_algorithm_and_dataset_run_as_plug_ins(tmp_path: Path) -> None:
    method, dataset = blocks("python")
    (tmp_path / "my_method.py").write_text(method)
    (tmp_path / "my_data.py").write_text(dataset)
    sweep = {"name": "mine", "datasets": ["Stripes"], "algorithms": ["ERM", "SD"], "trials": 2}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(sweep | {"steps": 40}))
    command = [sys.executable, "-m", "oodbench.sweep", "launch", "mine.yaml", "--yes"]
    command += ["--plugin", "my_method", "--plugin", "my_data", "--workers", "1"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 done of 4 runs" in done.stdout
    check = (
        "import my_method; from oodbench.conformance import check_algorithm; check_algorithm('SD')"
    )
    command = [sys.executable, "-c", check]
    checked = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("verb", ["plan", "launch", "status", "retry", "cancel", "clean"])
def test_it_shows_every_verb(verb: str) -> None:
    assert f"python -m oodbench.sweep {verb}" in README
