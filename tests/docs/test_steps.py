"""The step-by-step pages, followed to the letter in a copy of the project."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT
from tests.mutants import copy_of_the_tree

STEPS = ROOT / "docs" / "tutorials"
LEFT_OUT = ("git ", "make ", "python -m pytest")
"""What needs a repository or takes long; the copy has neither history nor an environment of its own."""
SHORTER = {"--algorithm RiskRange --out": "--algorithm RiskRange --dataset 'SEM, FOU' --out"}


def follow(page: str, copy: Path, left_out: tuple[str, ...] = LEFT_OUT) -> str:
    """Save the page's files in `copy`, then run its commands there; what they printed."""
    text = (STEPS / f"{page}.md").read_text()
    saved = re.findall(r"[Ss]ave this as `([^`]+)`.*?```\w+\n(.*?)```", text, re.S)
    for path, content in saved:
        (copy / path).write_text(content)
    printed = ""
    environment = os.environ | {"PYTHONPATH": str(copy)}
    for line in re.findall(r"^    (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M):
        if line.startswith(left_out):
            continue
        for long, short in SHORTER.items():
            line = line.replace(long, short)
        command = re.sub(r"(^|&& )python ", rf"\1{sys.executable} ", line)
        options: Any = {"cwd": copy, "env": environment, "capture_output": True, "text": True}
        done = subprocess.run(command, shell=True, **options)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    return printed


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps") / "oodbench"
    copy_of_the_tree(folder)
    return folder


@pytest.mark.nightly
def test_the_steps_add_a_method_that_enters_the_board(copy: Path) -> None:
    lists = ("docs/catalogue.md", "tests/golden/defaults.json", "tests/golden/hparams.json")
    before = {name: (copy / name).read_text() for name in lists}
    printed = follow("add_a_method", copy)
    assert "RiskRange keeps 14 of the 14 requirements that apply to it." in printed
    assert "\nbroken" not in printed
    assert re.search(r"RiskRange .* here", printed)
    for name, text in before.items():
        lines = {line.rstrip(",") for line in (copy / name).read_text().splitlines()}
        assert {line.rstrip(",") for line in text.splitlines()} < lines
    printed = follow("enter_the_board", copy)
    assert "results/enter is as it must be." in printed


@pytest.mark.nightly
def test_the_steps_add_a_dataset(copy: Path) -> None:
    printed = follow("add_a_dataset", copy)
    assert "TurningLine: all 1,600 examples can be read" in printed
    accuracy = dict(re.findall(r"^(ERM|IRM|constant) +([\d.]+) ±", printed, re.M))
    assert float(accuracy["ERM"]) > float(accuracy["constant"])


@pytest.mark.nightly
def test_what_agents_are_told_works(copy: Path) -> None:
    text = (ROOT / "AGENTS.md").read_text()
    assert len(text.splitlines()) <= 60
    targets = re.findall(r"^    make (\w+)", text, re.M)
    assert set(targets) == {"install", "check"}
    assert set(targets) <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    for path in re.findall(r"`((?:docs|algorithms|datasets|tests)/[\w./]*)`", text):
        assert (ROOT / path).exists() or f"Save this as `{path}`" in text, path
    printed = follow("../../AGENTS", copy, left_out=("make ",))
    assert re.search(r"MeanAndWorst keeps \d+ of the \d+ requirements", printed)
    assert " passed" in printed and '"done": 9' in printed
    assert "MeanAndWorst" in (copy / "docs" / "catalogue.md").read_text()
