"""Results on a file system that cannot be written to, for real, where we may mount one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.report.cli import app as report
from oodbench.results.compact import compact
from oodbench.results.directory import Directory
from oodbench.results.run_spec import State
from oodbench.sweep.cli import app as sweep
from tests.helpers.disks import mounted, remount
from tests.helpers.results.made import Made, flat

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Two ended runs, a broken and an unplanned one on a disk that has become read-only."""
    try:
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
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "arguments",
    [
        ["table", "{folder}"],
        ["compare", "{folder}"],
        ["why", "{folder}", "--algorithm", "ERM"],
        ["html", "{folder}", "--out", "{out}/page.html"],
    ],
)
def test_reports_of_results_that_cannot_be_written_to(
    folder: Path, tmp_path: Path, arguments: list[str]
) -> None:
    result = CliRunner().invoke(report, [a.format(folder=folder, out=tmp_path) for a in arguments])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("arguments", [["clean", "--yes"], ["html"]])
def test_what_would_write_there_says_so_in_one_sentence(folder: Path, arguments: list[str]) -> None:
    verb, *options = arguments
    app = report if verb == "html" else sweep
    result = CliRunner().invoke(app, [verb, str(folder), *options])
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert "Read-only file system" in line


def test_status_of_results_that_cannot_be_written_to(folder: Path) -> None:
    result = CliRunner().invoke(sweep, ["status", str(folder)])
    assert result.exit_code == 0 and "broken: " in result.output
    states = [Directory(folder).run(i).state() for i in Directory(folder).specs()]
    assert states == [State.DONE, State.DONE, State.BROKEN]
