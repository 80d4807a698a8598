import time
from pathlib import Path
from typing import Any

import pytest

from oodbench.report.figures import save_finding
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from tests.bench import costs


def test_the_fit_finds_what_made_the_figures() -> None:
    runs, ones = [1.0, 4.0, 16.0, 64.0], [1.0] * 4
    exact = costs.fit({"start": ones, "per_run": runs}, [5 + 0.2 * n for n in runs])
    assert exact == pytest.approx({"start": 5, "per_run": 0.2, "deviation": 0})
    doubled = costs.fit({"start": ones, "per_run": runs}, [5.2, 5.8, 8.2, 2 * 17.8])
    assert doubled["deviation"] > 0.2
    falling = costs.fit({"start": ones, "per_run": runs}, [4.0, 3.0, 2.0, 1.0])
    assert falling["per_run"] == 0  # no cost is negative


def test_cpu_seconds_are_the_median_of_blocks_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = 0.0, 0

    def work() -> None:
        nonlocal clock, calls
        calls += 1
        clock += 0.01 if calls % 50 else 5.0  # now and then something else is in the way

    monkeypatch.setattr(time, "process_time", lambda: clock)
    assert costs.cpu_seconds(work) == pytest.approx(0.01)
    assert calls > costs.BLOCKS * 20  # a block takes 0.2 s or more


def test_sweeps_have_the_runs_that_are_said() -> None:
    for runs in costs.RUNS:
        assert len(make_plan(validate(costs.sweep_of(runs), "costs")).runs) == runs


@pytest.mark.slow
def test_steps_and_evaluations_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "BLOCKS", 1)
    monkeypatch.setattr(costs, "ENVIRONMENTS", (2, 4))
    monkeypatch.setattr(costs, "BATCHES", (4, 256))
    monkeypatch.setattr(costs, "EXAMPLES", (16, 1024))
    steps = costs.steps_of("ANDMask")
    assert [p[:2] for p in steps] == [(2, 32), (4, 32), (16, 4), (16, 256)]
    assert min(p[2] for p in steps) > 0
    scored = costs.evaluations()
    assert [n for n, _ in scored] == [17 * 16, 17 * 1024]
    assert min(s for _, s in scored) > 0


def test_the_figure_and_its_table(tmp_path: Path) -> None:
    sizes = [(e, costs.FIXED_BATCH) for e in costs.ENVIRONMENTS]
    sizes += [(costs.FIXED_ENVIRONMENTS, b) for b in costs.BATCHES]
    made_up: dict[str, Any] = {
        "machine": {"cores": 2},
        "steps": {
            "ERM": [(e, b, 1e-3 + 2e-6 * e * b) for e, b in sizes],
            "ANDMask": [(e, b, 2e-3 + 1e-4 * e + 2e-6 * e * b) for e, b in sizes],
        },
        "evaluations": [(17 * n, 3e-3 + 1e-6 * 17 * n) for n in costs.EXAMPLES],
        "sweeps": {
            "by default": [{"runs": n, "cpu_seconds": 5 + 0.2 * n} for n in costs.RUNS],
            "--vectorize auto": [{"runs": n, "cpu_seconds": 5 + 0.05 * n} for n in costs.RUNS],
        },
    }
    shown = costs.finding(made_up)
    assert [list(row) for row in shown.rows] == [
        ["step of ERM", "1.00", "0.000", "2.00", "", "0 %"],
        ["step of ANDMask", "2.00", "0.100", "2.00", "", "0 %"],
        ["evaluation", "3.00", "", "1.00", "", "0 %"],
        ["sweep by default", "5000", "", "", "200", "0 %"],
        ["sweep --vectorize auto", "5000", "", "", "50", "0 %"],
    ]
    png, svg = save_finding(shown, "costs", tmp_path)
    assert png.stat().st_size > 10_000
    text = svg.read_text()
    for part in ("ANDMask", "environments", "examples of an environment", "--vectorize auto"):
        assert part in text
