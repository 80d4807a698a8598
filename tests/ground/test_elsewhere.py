"""The harness where names of Linux are missing, as on macOS and Windows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.results.sweeps import tiny_file

ROOT = Path(__file__).parents[2]
TAKEN_AWAY = """
import mmap, multiprocessing, multiprocessing.context, os, signal, sys

sys.modules["fcntl"] = sys.modules["multiprocessing.forkserver"] = None
for module, names in {
    os: ("sched_getaffinity",),
    signal: ("SIGUSR1", "SIGUSR2", "pthread_sigmask"),
    mmap: ("MADV_DONTNEED",),
    multiprocessing.context: ("ForkServerContext",),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
import oodbench.arithmetic
oodbench.arithmetic._processor_flags = set
"""
"""Python runs it at the start of every process, those that multiprocessing spawns among them."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of such a machine."""
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "sitecustomize.py").write_text(TAKEN_AWAY)
    path = os.pathsep.join([str(tmp_path / "machine"), str(ROOT)])
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "100"}


def run(environment: dict[str, str], *command: str, folder: Path) -> str:
    """Run a command there; return what it prints."""
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_sweep_from_its_plan_to_its_table(elsewhere: dict[str, str], tmp_path: Path) -> None:
    file = str(tiny_file(tmp_path, algorithms=["ERM", "VREx"], trials=2, steps=4, evaluate_every=2))
    launch = ("oodbench.sweep", "launch", file, "--yes", "--out", "out", "--workers", "1")
    said = " ".join(run(elsewhere, *launch, folder=tmp_path).split())
    assert "This system has no portable arithmetic" in said
    assert "ERM" in said and "VREx" in said


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("oodbench.board quickstart", "VREx"),
        ("oodbench.conformance VREx", "VREx"),
        ("oodbench.data check Spirals", "can be read"),
    ],
)
def test_other_commands(command: str, word: str, elsewhere: dict[str, str], tmp_path: Path) -> None:
    assert word in run(elsewhere, *command.split(), folder=tmp_path)
