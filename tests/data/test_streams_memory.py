from pathlib import Path

import pytest

from tests.helpers.commands import python
from tests.helpers.data.stored_data import SIDE, write
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.slow


def peak(folder: Path, kind: str) -> float:
    return float(python(ROOT, "-m", "tests.helpers.data.stored_data", str(folder), kind).stdout)


@pytest.mark.nightly
def test_the_memory_of_a_streamed_run_does_not_grow_with_the_data(tmp_path: Path) -> None:
    """Where 166 MB more of images would show: in a run that holds them in memory they do."""
    folders = []
    for factor in (1, 10):
        folders.append(tmp_path / str(factor))
        folders[-1].mkdir()
        write(folders[-1], (2400 * factor, 2000 * factor, 1600 * factor), side=SIDE)
    once, tenfold = (peak(folder, "stored") for folder in folders)
    held = peak(folders[1], "memory")
    print(f"streamed {once:.0f} MB, ten times the data {tenfold:.0f} MB, in memory {held:.0f} MB")
    assert tenfold - once < 30  # two runs on the same data differ by up to 15
    assert held - tenfold > 150
