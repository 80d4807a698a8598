from pathlib import Path

from oodbench.report.leaderboard import leaderboard
from oodbench.results.frames import load_frames
from tests.helpers.made import Curve, Made


def shortcut(rise: float) -> Curve:
    """Rises in `a`, the training environment, and falls everywhere else."""
    return lambda environment, split, step: (
        0.5 + rise * step / 100 * (1 if environment == "a" else -1)
    )


def with_validation(path: Path, rises: dict[str, float]) -> Made:
    """Sweeps of three trials with the test environment `b` and the validation environment `c`."""
    made = Made(path)
    for label, rise in rises.items():
        for trial in range(3):
            made.add("D", label, ("b",), trial, shortcut(rise + trial / 100), validation=("c",))
    return made


def test_validation_environments_choose_unless_the_sweep_says_otherwise(tmp_path: Path) -> None:
    made = with_validation(tmp_path, {"ERM": 1.0})
    assert set(leaderboard(load_frames(made.results)).frame["rule"]) == {"val_env"}
    settings = made.results.plan()["settings"] | {"selection": "train_val"}
    made.results.write_plan("made", settings, made.runs)
    assert set(leaderboard(load_frames(made.results)).frame["rule"]) == {"train_val"}


def test_a_finding_says_where_two_rules_differ_beyond_both_errors(tmp_path: Path) -> None:
    frames = load_frames(with_validation(tmp_path, {"ERM": 1.0, "IRM": 0.5}).results)
    (finding,) = leaderboard(frames).findings
    assert finding == (
        "The selection rule matters: ERM on D has 39.9 ± 0.1 by val_env and 19.7 ± 0.2 by train_val, "
        "a difference beyond both errors, and 1 more row differs so."
    )
    (turned,) = leaderboard(frames, "train_val").findings
    assert "19.7 ± 0.2 by train_val and 39.9 ± 0.1 by val_env" in turned
    assert leaderboard(frames, "oracle").findings == ()


def test_rules_that_agree_are_not_mentioned(tmp_path: Path) -> None:
    frames = load_frames(with_validation(tmp_path, {"ERM": 0.0}).results)
    assert leaderboard(frames).findings == ()


def test_one_trial_has_no_error_that_rules_could_differ_beyond(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.add("D", "ERM", ("b",), 0, shortcut(1.0), validation=("c",))
    assert leaderboard(load_frames(made.results)).findings == ()
