"""The harness where names of Linux are missing, as on macOS and Windows."""

import os
from pathlib import Path

import pytest

from tests.helpers.commands import python
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import tiny_file

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


def run(folder: Path, *command: str) -> str:
    """What a command prints on such a machine."""
    (folder / "machine").mkdir()
    (folder / "machine" / "sitecustomize.py").write_text(TAKEN_AWAY)
    path = f"{folder / 'machine'}{os.pathsep}{ROOT}"
    ended = python(folder, "-m", *command, PYTHONPATH=path, COLUMNS="100")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_sweep_from_its_plan_to_its_table(tmp_path: Path) -> None:
    file = str(tiny_file(tmp_path, algorithms=["ERM", "VREx"], trials=2, steps=4, evaluate_every=2))
    launch = ("oodbench.sweep", "launch", file, "--yes", "--out", "out", "--workers", "1")
    said = " ".join(run(tmp_path, *launch).split())
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
def test_other_commands(command: str, word: str, tmp_path: Path) -> None:
    assert word in run(tmp_path, *command.split())
