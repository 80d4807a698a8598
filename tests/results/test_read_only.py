"""Results on a file system that cannot be written to, for real, where we may mount one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oodbench.results.directory import Directory, compact
from oodbench.results.run_spec import State
from tests.helpers.commands import type_in
from tests.helpers.disks import mounted, remount
from tests.helpers.results.made import Made, flat

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Two ended runs, a broken and an unplanned one on a disk that has become read-only."""
    with mounted(tmp_path / "disk", "size=2m") as disk:
        made = Made(disk / "out")
        for label in ("ERM", "IRM"):
            made.add("FourPoints", label, ("a",), 0, flat(0.5))
        broken = made.results.run(made.add("FourPoints", "ERM", ("a",), 1, flat(0.5)))
        with (broken.path / "metrics.jsonl").open("a") as file:
            file.write("{")
        assert compact(made.results) == 2
        (disk / "out" / "runs" / "unplanned").mkdir()
        remount(disk, "ro")
        yield disk / "out"


def test_what_reads_works_and_what_would_write_says_so(folder: Path, tmp_path: Path) -> None:
    reading = ("report", "table"), ("report", "compare"), ("report", "why"), ("report", "html")
    options = {"why": ("--algorithm", "ERM"), "html": ("--out", tmp_path / "page.html")}
    for room, verb in reading:
        type_in(room, verb, folder, *options.get(verb, ()), code=0)
    for words in (("sweep", "clean", folder, "--yes"), ("report", "html", folder)):
        (line,) = type_in(*words, code=2).stderr.strip().splitlines()
        assert "Read-only file system" in line
    assert "broken: " in type_in("sweep", "status", folder, code=0).output
    states = [Directory(folder).run(i).state() for i in Directory(folder).specs()]
    assert states == [State.DONE, State.DONE, State.BROKEN]
