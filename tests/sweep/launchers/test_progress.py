"""The bars of a launch fit the terminal: a description is cut, a count or a time never."""

from pathlib import Path

import pytest

from oodbench.results.run_spec import State
from oodbench.sweep.launchers.progress import Display
from tests.helpers.sweeps import job, tiny


def test_the_time_left_counts_no_start_and_all_steps_of_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = job(tiny(algorithms=["ERM"], trials=8, steps=100), tmp_path)
    clock = iter([1000.0, 1010.0, 1020.0])
    with Display(asked, workers=1) as display:
        monkeypatch.setattr("time.monotonic", lambda: next(clock))
        display.started(0, asked.ids[:4])
        display.stepped(0, 1)
        display.stepped(0, 100)  # 396 steps in ten seconds, and 400 are left
        display.ended(asked.ids[0], State.DONE, "")
        display.started(0, asked.ids[4:])
        display.stepped(0, 40)  # they may have had checkpoints
        display.ended(asked.ids[4], State.FAILED, "")  # 180 are left
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("about 10 s left") and second.endswith("about 9 s left")
