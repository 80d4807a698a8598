"""The tables that the page on control prints beside its targets are those of the measured values."""

import json
import re

import numpy as np
import pytest
from scipy.stats import t

from oodbench.verify.targets import load_experiment
from tests.helpers.paths import ROOT

FILE = ROOT / "tests" / "verify" / "control_rewards.json"
MEASURED: dict[str, list[float]] = json.loads(FILE.read_text())
"""Each trial's value, as `oodbench.verify.computations.control` computes it, by name."""
NAMES = {"V-REx": "VREx", "MM-REx": "MMREx", "the planner with true rewards": "true"}


def interval(name: str, digits: int) -> str:
    if name not in MEASURED:
        return ""
    values = np.array(MEASURED[name])
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    low, mid, high = (f"{x:z.{digits}f}" for x in values.mean() + half * np.array([-1, 0, 1]))
    return f"{mid} [{low}, {high}]"


@pytest.mark.parametrize("before", ["", "VREx before "])
def test_tables_have_the_measured_values(before: str) -> None:
    about = load_experiment("control-rewards").about
    first, second = about.split("V-REx's advantages, with 95 % intervals:")
    lines = re.findall(r"^\| .*\|$", second if before else first, re.M)[2:]
    assert len(lines) == (10 if before else 16)
    task = ""
    for line in lines:
        place, name, *shown = (cell.strip(" `") for cell in line.strip("|").split("|"))
        task = place or task
        row = f"{before}{NAMES.get(name, name)}, {task}"
        assert shown == [interval(f"{row}: error", 4), interval(f"{row}: reward", 3)], line
