"""A search on a real Slurm: jobs choose further draws, and go on after they are killed."""

import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from oodbench.results.directory import Results
from oodbench.sweep.cli import app
from oodbench.sweep.launchers.states import states
from tests.helpers.sweeps import outcome, tiny_file
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slow

CHANGES: dict[str, Any] = {
    "algorithms": ["Slow"],
    "trials": 1,
    "steps": 40,
    "evaluate_every": 20,
    "search": {"method": "tpe", "runs": 18, "at_a_time": 2},
}


def launch(sweep: Path, out: Path, launcher: str, *more: str) -> None:
    given = ["launch", str(sweep), "--out", str(out), "--launcher", launcher, "--yes"]
    launched = CliRunner().invoke(app, [*given, "--plugin", "tests.helpers.odd_methods", *more])
    assert launched.exit_code == 0, launched.output


def wait(results: Results, count: int) -> None:
    """Until so many runs have ended."""
    until = time.monotonic() + 300
    while sum(s == "done" for s, _ in outcome(results).values()) < count:
        assert time.monotonic() < until, states(results)
        time.sleep(0.2)


def test_jobs_share_a_study_and_go_on_after_a_kill(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, out = tiny_file(tmp_path, **CHANGES), tmp_path / "out"
    launch(sweep, tmp_path / "debug", "debug")
    monkeypatch.setenv("SLOW_SECONDS", "0.1")  # 4 s a run: some are left when it is cancelled
    launch(sweep, out, "slurm", "--runs-per-job", "6")
    results = Results(out)
    assert len(list(out.glob("jobs/*/submission.json"))) == 1
    wait(results, 7)
    assert set(s.state for s in states(results).values()) <= {"done", "queued", "running"}
    assert CliRunner().invoke(app, ["cancel", str(out)]).exit_code == 0
    until = time.monotonic() + 180
    while any(s.state == "running" for s in states(results).values()):
        assert time.monotonic() < until
        time.sleep(0.3)
    assert len(results.plan()["runs"]) < 18
    monkeypatch.setenv("SLOW_SECONDS", "0")
    launch(sweep, out, "slurm", "--runs-per-job", "1")
    wait(results, 18)
    assert outcome(results) == outcome(Results(tmp_path / "debug"))
