"""One short round of chaos; `python -m tests.slurm.chaos` deals more."""

import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT


@pytest.mark.nightly
def test_a_sweep_under_random_blows_ends_as_an_undisturbed_one() -> None:
    blows = ("--rounds", "1", "--runs", "12", "--blows", "3")
    subprocess.run([sys.executable, "-m", "tests.slurm.chaos", *blows], cwd=ROOT, check=True)
