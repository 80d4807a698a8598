"""The bars of a launch fit the terminal: a description is cut, a count or a time never."""

import io
from pathlib import Path

import pytest

from oodbench.results.run_spec import State
from oodbench.sweep.launchers.progress import Display, progress
from oodbench.terminal import Terminal
from tests.helpers.sweeps import job, tiny

LONG = "GroupDRO over groups on digits on backgrounds (test 0.1), draw 13, trial 4 and 63 more"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_counts_and_times_are_whole_whatever_the_width(width: int) -> None:
    console = Terminal(width=width, force_terminal=True, file=io.StringIO(), color_system=None)
    bars = progress(console, 12000)
    bars.add_task("runs", total=120, completed=3)
    bars.add_task(LONG, total=12000, completed=11999)
    with console.capture() as shown:
        console.print(bars.get_renderable())
    runs, steps = shown.get().splitlines()
    assert max(len(runs), len(steps)) <= width
    assert runs.startswith("runs ") and "3/120 " in runs
    assert steps.startswith(LONG[:20]) and "11999/12000 " in steps
    for line in (runs, steps):
        assert line.rstrip().endswith("0:00:00 -:--:--") and line.count(":") >= 4
    assert (LONG in steps) == (width == 200)


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
