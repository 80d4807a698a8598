"""Two machines' runs of one sweep as one."""

from pathlib import Path

from oodbench.results.read import joined, read_results
from tests.helpers.results.made import Made, flat, leaderboard


def half(path: Path, trials: tuple[int, ...]) -> Made:
    made = Made(path)
    for label in ("ERM", "IRM"):
        for trial in trials:
            made.add("D", label, ("a",), trial, flat(0.25 + trial / 8))
    return made


def test_the_table_of_two_directories_is_that_of_all_runs(tmp_path: Path) -> None:
    halves = half(tmp_path / "1", (0, 1)), half(tmp_path / "2", (1, 2))
    whole = half(tmp_path / "whole", (0, 1, 2))
    wanted = leaderboard(read_results(whole.results)).frame
    assert leaderboard(joined([made.results.path for made in halves])).frame.equals(wanted)


def test_the_complete_copy_of_a_run_is_taken(tmp_path: Path) -> None:
    halves = half(tmp_path / "1", (0, 1)), half(tmp_path / "2", (0, 1))
    for wanted, made in enumerate(halves):
        for run_id, spec in made.runs.items():
            if spec.trial == wanted:
                (made.results.run(run_id).path / "done.json").unlink()
    assert set(joined([made.results.path for made in halves]).runs["state"]) == {"done"}
