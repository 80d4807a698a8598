"""Two machines' runs of one sweep as one directory."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.errors import UserError
from oodbench.report.cli import app
from oodbench.report.leaderboard import leaderboard
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.results.join import joined, merge
from tests.helpers.made import Made, flat
from tests.helpers.sweeps import edited


def half(path: Path, trials: tuple[int, ...], **settings: object) -> Made:
    made = Made(path)
    for label in ("ERM", "IRM"):
        for trial in trials:
            made.add("D", label, ("a",), trial, flat(0.25 + trial / 8))
    if settings:
        with edited(path / "sweep.json") as plan:
            plan["settings"] = settings
    return made


def test_the_table_of_a_merged_directory_is_that_of_all_runs(tmp_path: Path) -> None:
    first, second = half(tmp_path / "1", (0, 1)), half(tmp_path / "2", (1, 2))
    whole = half(tmp_path / "whole", (0, 1, 2))
    out = tmp_path / "new" / "merged"
    assert merge([first.results.path, second.results.path], out).runs == 6
    wanted = leaderboard(load_frames(whole.results)).frame
    assert leaderboard(joined([out])).frame.equals(wanted)
    paths = [first.results.path, second.results.path]
    assert leaderboard(joined(paths)).frame.equals(wanted), "two directories are shown as one"


def test_the_complete_copy_of_a_run_is_taken(tmp_path: Path) -> None:
    first, second = half(tmp_path / "1", (0, 1)), half(tmp_path / "2", (0, 1))
    for made, wanted in ((first, 0), (second, 1)):
        for run_id, spec in made.results.plan()["runs"].items():
            if spec["trial"] == wanted:
                (made.results.run(run_id).path / "done.json").unlink()
    merge([first.results.path, second.results.path], tmp_path / "out")
    assert set(load_frames(Results(tmp_path / "out")).runs["state"]) == {"done"}


def test_sweeps_that_differ_are_not_merged(tmp_path: Path) -> None:
    first = half(tmp_path / "1", (0,)).results.path
    steps = half(tmp_path / "2", (1,), sweep={"steps": 5}).results.path
    other = half(tmp_path / "4", (1,)).results.path
    with edited(other / "sweep.json") as plan:
        plan["name"] = "other"
    for second, words in ((steps, "differ in steps"), (other, "'other'")):
        with pytest.raises(UserError, match=words):
            merge([first, second], tmp_path / "out")
    with pytest.raises(UserError, match="there already"):
        merge([first], first)
    assert not (tmp_path / "out").exists()


def test_mixed_code_is_told(tmp_path: Path) -> None:
    first, second = half(tmp_path / "1", (0,)), half(tmp_path / "2", (1,))
    for file in second.results.path.glob("runs/*/run.json"):
        with edited(file) as run:
            run["provenance"]["commit"] = "f" * 40
    paths = [str(first.results.path), str(second.results.path)]
    result = CliRunner().invoke(app, ["merge", *paths, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0 and "trained by different code" in result.stdout
    assert "ffffffffffff" in result.stdout
