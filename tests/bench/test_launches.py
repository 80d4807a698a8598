from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from oodbench.bench import launches
from oodbench.sweep.launchers import local


@pytest.mark.nightly
def test_a_shortcut_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"trials": 1, "steps": 2, "evaluate_every": 2}
    shortcut = replace(launches.SHORTCUTS[0], batch_size=4, sweep=short)
    monkeypatch.setattr(launches, "SHORTCUTS", (shortcut,))
    (row,) = launches.shortcut_rows(tmp_path, rounds=1)
    assert row.what == f"CPU time of a launch of 2 runs without / with {shortcut.what}"
    assert float(row.measured) > 0


def test_every_statement_sets_what_the_launcher_has() -> None:
    names = [shortcut.without.partition(" = ")[0] for shortcut in launches.SHORTCUTS]
    assert all(hasattr(local, name) for name in names)


@pytest.mark.slow
def test_a_launch_that_fails_shows_its_output(tmp_path: Path) -> None:
    sweep = tmp_path / "wrong.yaml"
    sweep.write_text(yaml.safe_dump({"name": "wrong", "datasets": ["Spirals"]}))
    with pytest.raises(RuntimeError, match="algorithms is missing"):
        launches.launch_seconds(sweep, "pass", tmp_path / "launch")
