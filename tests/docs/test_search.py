"""The guide's search with optuna."""

import subprocess
import sys
from pathlib import Path

import pytest

from oodbench.results.directory import Directory
from oodbench.sweep.file import read_sweep
from oodbench.sweep.plan import make_plan
from tests.helpers.paths import blocks

SMALLER = {
    "DRAWS, TRIALS, WORKERS = 40, [0, 1], 4": "DRAWS, TRIALS, WORKERS = 11, [0], 2",
    '"steps": 200, "evaluate_every": 20': '"steps": 4, "evaluate_every": 2',
}


@pytest.mark.nightly
def test_the_search_of_the_guide_goes_on_where_it_was_and_is_a_sweep(tmp_path: Path) -> None:
    (script,) = blocks("docs/guide/search.md")
    for written, small in SMALLER.items():
        assert written in script
        script = script.replace(written, small)
    (tmp_path / "tune.py").write_text(script)
    results = Directory(tmp_path / "results" / "tuned")
    sweeps, ends = [], []
    for _ in range(2):
        subprocess.run([sys.executable, "-W", "error", "tune.py"], cwd=tmp_path, check=True)
        sweeps.append((tmp_path / "tuned.yaml").read_text())
        ends.append({p: p.stat().st_mtime_ns for p in results.path.glob("runs/*/done.json")})
    assert sweeps[0] == sweeps[1]
    assert ends[0] == ends[1]
    plan = make_plan(read_sweep(tmp_path / "tuned.yaml"))
    assert plan.runs.keys() == results.specs().keys() == {p.parent.name for p in ends[0]}
