"""The bars of a launch fit the terminal: a description is cut, a count or a time never."""

import io

import pytest

from oodbench.sweep.launchers.progress import progress
from oodbench.terminal import Terminal

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
