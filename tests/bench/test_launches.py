from pathlib import Path

import pytest
import yaml

from oodbench.sweep.launchers import local
from tests.bench import launches


@pytest.mark.nightly
def test_a_shortcut_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = ("FORKS = False", 4, {"trials": 1, "steps": 2, "evaluate_every": 2})
    monkeypatch.setattr(launches, "SHORTCUTS", {"forks": short})
    (row,) = launches.shortcut_rows(tmp_path, rounds=1)
    assert row.what == "CPU time of a launch of 2 runs without / with forks"
    assert float(row.measured) > 0


def test_every_statement_sets_what_the_launcher_has() -> None:
    assert all(hasattr(local, s.partition(" = ")[0]) for s, *_ in launches.SHORTCUTS.values())


@pytest.mark.slow
def test_a_launch_that_fails_shows_its_output(tmp_path: Path) -> None:
    sweep = tmp_path / "wrong.yaml"
    sweep.write_text(yaml.safe_dump({"name": "wrong", "datasets": ["Spirals"]}))
    with pytest.raises(RuntimeError, match="algorithms is missing"):
        launches.launch_seconds(sweep, "pass", tmp_path / "launch")
