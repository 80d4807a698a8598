"""The bars of a launch fit the terminal: a description is cut, a count or a time never."""

from pathlib import Path

import pytest

from oodbench.results.run_spec import State
from oodbench.sweep.launchers.progress import Display
from tests.helpers.results.sweeps import job, tiny


def test_the_time_left_is_that_of_the_runs_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = job(tiny(algorithms=["ERM"], trials=8, steps=100), tmp_path)
    clock = iter([1000.0, 1010.0, 1016.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with Display(asked, workers=1) as display:
        display.ended(asked.ids[0], State.DONE, "")
        display.ended(asked.ids[4], State.FAILED, "why")
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("trial 0, about 70 s left")
    assert second.endswith("trial 4: why, about 48 s left")
