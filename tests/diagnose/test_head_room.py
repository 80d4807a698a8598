"""What `diagnose dataset` compares: ERM, the constant answer, the ceiling, the test environment alone."""

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import scipy

from oodbench.datasets import make
from oodbench.diagnose.admission import REFERENCES, Figures
from oodbench.diagnose.head_room import HeadRoom, _on_its_own, _spearman, head_room, verdicts
from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.selection.judge import judge
from oodbench.sweep.launchers import LaunchOptions
from tests.helpers.commands import type_in
from tests.helpers.results.made import Curve, Made

CITIES = {"num_examples": 60}
FIGURES = Figures(
    metric="accuracy",
    higher_is_better=True,
    outside={"ERM": (0.6, 0.01)},
    ceilings={"ceiling": (0.64, 0.01), "alone": (0.70, 0.01)},
)
ROOM = HeadRoom(
    label="Scans",
    tests=("c",),
    rule="train_val",
    steps=10,
    draws=8,
    trials=2,
    seconds=1.0,
    constant=(0.5, 0.0),
    spearman=(0.6, 0.01),
    figures=FIGURES,
)
LOSS = Figures("mse", False, {"ERM": (2.0, 0.1)}, {"ceiling": (1.9, 0.1)})


def curve_of(score: float, value: float) -> Curve:
    """Every step has the `value` on environment c and the `score` on others."""
    return lambda environment, split, step: value if environment == "c" else score


@pytest.mark.parametrize(
    ("figures", "constant", "at_chance"),
    [
        (FIGURES, (0.5, 0.0), False),
        (FIGURES, (0.6, 0.0), True),
        (LOSS, (3.0, 0.0), False),
        (LOSS, (1.9, 0.0), True),
        (LOSS, None, False),
    ],
)
def test_erm_is_at_chance_where_the_constant_answer_is_no_worse(
    figures: Figures, constant: tuple[float, float] | None, at_chance: bool
) -> None:
    room = replace(ROOM, figures=figures, constant=constant)
    assert room.is_at_chance == at_chance
    assert any("no better than the constant" in each for each in verdicts(room)) == at_chance


@pytest.mark.parametrize(
    ("figures", "room", "least"),
    [
        (FIGURES, 0.1, 0.08),
        (replace(FIGURES, ceilings={"ceiling": (0.64, 0.01)}), 0.04, 0.08),
        (replace(FIGURES, ceilings={}), None, 0.08),
        (LOSS, 0.1, 0.3),
        (replace(LOSS, ceilings={"alone": (1.6, 0.1)}), 0.4, 0.3),
    ],
)
def test_head_room_is_what_the_best_ceiling_has_over_erm(
    figures: Figures, room: float | None, least: float
) -> None:
    assert figures.room == (None if room is None else pytest.approx(room))
    assert figures.least_room == pytest.approx(least)


@pytest.mark.parametrize(
    ("spearman", "expected", "words"),
    [
        ((0.6, 0.01), True, "+0.60 (p = 0.01), on the line."),
        ((0.6, 0.2), False, "+0.60 (p = 0.2), not on the line."),
        ((-0.6, 0.01), False, "-0.60 (p = 0.01), not on the line."),
        (None, None, ""),
    ],
)
def test_a_dataset_is_on_the_line_where_the_correlation_is_surely_positive(
    spearman: tuple[float, float] | None, expected: bool | None, words: str
) -> None:
    room = replace(ROOM, spearman=spearman)
    assert room.is_on_the_line is expected
    assert "".join(verdicts(room)).endswith(words)


@pytest.mark.nightly
def test_erm_is_compared_with_three_others_and_goes_on_where_it_was(tmp_path: Path) -> None:
    options = LaunchOptions(out=tmp_path, launcher="debug")
    room = head_room("CityWeather", CITIES, options, steps=10, draws=3, trials=2, references=False)
    results = Directory(tmp_path)
    specs = results.specs()
    kinds = Counter((s.ceiling, len(s.test_environments)) for s in specs.values())
    assert kinds == {(False, 1): 3 * 2, (True, 1): 2 * 2, (False, 4): 2 * 2}
    sets = {s.test_environments for s in specs.values()}
    assert sorted(map(len, sets)) == [1, 4]
    assert ("Auckland", "Beijing", "Chicago", "San Diego") in sets
    assert all(s.options["as_test"] == s.ceiling for s in specs.values())
    wet = [make("CityWeather", CITIES).load(t)["Mumbai"].y.mean().item() for t in range(2)]
    assert room.constant is not None
    in_split = [1 - w for w in wet]  # dry is the commonest answer of the other cities
    assert room.constant[0] == pytest.approx(sum(in_split) / 2, abs=0.15)

    erm = {i: s for i, s in specs.items() if len(s.test_environments) == 1 and not s.ceiling}
    frames = read_results(results, erm)
    tied = judge(frames, "train_val").tied
    values = frames.records.astype({"id": object}).merge(tied[["id", "step", "trial"]])
    at = values[(values["environment"] == "Mumbai") & (values["split"] == "in")]
    of_trials = at[at["metric"] == "accuracy"].groupby("trial")["value"].mean()
    assert room.figures.outside["ERM"][0] == pytest.approx(of_trials.mean())
    assert room.figures.ceilings.keys() == {"ceiling", "alone"}
    assert 0 < room.figures.ceilings["alone"][0] <= 1

    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("ended/*")}
    again = head_room("CityWeather", CITIES, options, steps=10, draws=3, trials=2, references=False)
    assert again == room
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.glob("ended/*")}


def test_a_dataset_needs_out_splits_and_an_option_for_a_ceiling(tmp_path: Path) -> None:
    options = LaunchOptions(out=tmp_path, launcher="debug")
    with pytest.raises(UserError, match="FourPoints has neither `out` splits nor validation"):
        head_room("FourPoints", {}, options)
    room = head_room("ThreeInputs", {}, options, steps=3, draws=2, trials=2, references=False)
    assert "ceiling" not in room.figures.ceilings and room.constant is not None


def test_the_value_of_the_test_alone_is_of_a_draw_that_other_trials_choose(tmp_path: Path) -> None:
    made = Made(tmp_path)
    accuracy = {(0, 0): 0.9, (1, 0): 0.5, (0, 1): 0.7, (1, 1): 0.8}  # by draw and trial
    for (draw, trial), score in accuracy.items():
        curve = curve_of(score, score)
        made.add("Scans", "ERM", ("a", "b"), trial, curve, draw=draw, steps=(10,))
    frames = read_results(made.results, made.runs)
    value = _on_its_own(frames, True, "ERM")
    # trial 1 has draw 1 as its best, which has .5 in trial 0; trial 0 has draw 0, with .7 in trial 1
    assert value is not None and value[0] == pytest.approx((0.5 + 0.7) / 2)
    worst = _on_its_own(frames, False, "ERM")
    assert worst is not None and worst[0] == pytest.approx((0.9 + 0.8) / 2)
    one = Made(tmp_path / "one")
    one.add("Scans", "ERM", ("a", "b"), 0, lambda e, s, t: 0.5)
    assert _on_its_own(read_results(one.results, one.runs), True, "ERM") is None


def test_a_correlation_is_scipys_of_scores_and_test_values(tmp_path: Path) -> None:
    made, scores, values = Made(tmp_path), [0.5, 0.7, 0.6, 0.9, 0.8], [0.3, 0.2, 0.25, 0.1, 0.5]
    for draw, (score, value) in enumerate(zip(scores, values, strict=True)):
        made.add("Scans", "ERM", ("c",), 0, curve_of(score, value), draw=draw)
    found = _spearman(read_results(made.results, made.runs))
    expected = scipy.stats.spearmanr(scores, values)
    assert found is not None and math.isclose(found[0], expected.statistic)
    assert math.isclose(found[1], expected.pvalue)


@pytest.mark.nightly
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodbench.diagnose.head_room.MOST_STEPS", 4)
    command = ["diagnose", "dataset", "CityWeather", "--set=num_examples=60", f"--out={tmp_path}"]
    printed = type_in(*command).output
    assert "Spearman's correlation" in printed
    rows = "constant", "ERM", "ceiling", "ERM on Mumbai alone", "Forest ceiling", "Logistic ceiling"
    for name in (*rows, *REFERENCES):
        assert re.search(rf"^{name} +\d+\.\d ± \d+\.\d$", printed, re.M), printed
    for what in ("ERM in distribution", "head-room", "choices by ties"):
        assert re.search(rf"^{what} .* (yes|no)$", printed, re.M), printed
