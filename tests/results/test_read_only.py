"""Results on a file system that cannot be written to, for real, where we may mount one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from oodbench.report.__main__ import app as report
from oodbench.results.directory import Directory, compact
from oodbench.results.run_spec import State
from oodbench.sweep.__main__ import app as sweep
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


def test_what_reads_works_and_what_would_write_says_so_in_one_sentence(
    folder: Path, tmp_path: Path
) -> None:
    def invoke(app: typer.Typer, *arguments: str) -> Result:
        return CliRunner().invoke(app, [a.format(folder=folder, out=tmp_path) for a in arguments])

    for reading in (
        ("table", "{folder}"),
        ("compare", "{folder}"),
        ("why", "{folder}", "--algorithm", "ERM"),
        ("html", "{folder}", "--out", "{out}/page.html"),
    ):
        result = invoke(report, *reading)
        assert result.exit_code == 0, result.output
    for app, verb in ((sweep, ("clean", "{folder}", "--yes")), (report, ("html", "{folder}"))):
        result = invoke(app, *verb)
        assert result.exit_code == 2
        (line,) = result.stderr.strip().splitlines()
        assert "Read-only file system" in line
    result = invoke(sweep, "status", "{folder}")
    assert result.exit_code == 0 and "broken: " in result.output
    states = [Directory(folder).run(i).state() for i in Directory(folder).specs()]
    assert states == [State.DONE, State.DONE, State.BROKEN]
