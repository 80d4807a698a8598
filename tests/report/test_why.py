import io
import math
import re
from pathlib import Path

import pytest

from oodbench.errors import PLUGIN_HINT, UserError
from oodbench.report.numbers import with_error
from oodbench.report.why import Why, show, why
from oodbench.results.read import read_results
from oodbench.terminal import Terminal
from tests.helpers.results.made import Made, flat, leaderboard, report


def text(cell: Why) -> str:
    out = io.StringIO()
    show(cell, Terminal(file=out))
    return out.getvalue()


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Two trials of two draws; draw 1 has the best score in trial 0, both the same in trial 1."""
    sweep = Made(tmp_path)
    for trial, scores in enumerate(((0.5, 0.6), (0.7, 0.7))):
        for draw, score in enumerate(scores):

            def curve(environment: str, split: str, step: int, score: float = score) -> float:
                if environment == "a":
                    return (0.2 + score / 10) if split == "in" else 0.99
                return score if step == 20 else 0.1

            sweep.add("D", "ERM", ("a",), trial, curve, draw=draw)
    return sweep


def test_it_lists_the_runs_best_first_and_marks_the_chosen_with_the_tables_mean(made: Made) -> None:
    frames = read_results(made.results)
    cell = why(frames)
    runs = cell.runs
    assert (cell.dataset, cell.label, cell.test_environments) == ("D", "ERM", ("a",))
    assert list(runs["trial"]) == [0, 0, 1, 1] and list(runs["draw"]) == [1, 0, 0, 1]
    assert list(runs["chosen"]) == [True, False, True, False]
    assert list(runs["tied"]) == [True, False, True, True]
    assert list(cell.of_trials("value")) == pytest.approx([0.26, 0.27])
    assert list(runs["step"]) == [20] * 4
    assert list(runs["score"]) == pytest.approx([0.6, 0.5, 0.7, 0.7])
    assert list(runs["value"]) == pytest.approx([0.26, 0.25, 0.27, 0.27])
    assert cell.waiting == []
    row = leaderboard(frames).frame.iloc[0]
    told = text(cell)
    assert f"accuracy (%): {with_error(row['mean'], row['stderr'], 'accuracy')}, mean" in told
    assert "n = 2 of 2" in told and "ties go to the lowest draw" in told
    for run_id in made.runs:
        assert run_id in told
    assert len(re.findall("yes +done", told)) == 2 and len(re.findall("tie +done", told)) == 1
    path, names = made.results.path, ("--dataset", "D", "--algorithm", "ERM", "--test-env", "a")
    assert report("why", path, *names, "--rule", "train_val") == (0, told, "")
    code, _, error = report("why", path, "--rule", "val_env")
    assert code == 2 and error.startswith("error: selection val_env needs")


def test_a_missing_run_is_named_as_the_reason(made: Made) -> None:
    made.add("D", "ERM", ("a",), 2, flat(0.5))
    made.add("D", "ERM", ("a",), 2, flat(0.5), draw=1, state="failed", error="e")
    cell = why(read_results(made.results))
    assert cell.waiting == [2]
    last = cell.runs.iloc[-1]
    assert last["state"] == "failed" and math.isnan(last["score"]) and not last["chosen"]
    told = text(cell)
    assert "Runs that are missing for a choice in trial 2: 1 failed." in told
    assert "n = 2 of 3" in told


def test_one_trial_has_no_error_and_no_run_no_mean(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.add("D", "ERM", ("a",), 0, flat(0.5))
    assert "accuracy (%): 50.0, one trial, n = 1 of 1" in text(why(read_results(made.results)))
    made.add("D", "IRM", ("a",), 0, flat(0.5), state="planned")
    told = text(why(read_results(made.results), label="IRM"))
    assert "No trial is complete." in told and "1 planned" in told


def test_a_diverged_value_is_neither_dropped_nor_hidden(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial in (0, 1):
        made.add("D", "ERM", ("a",), trial, flat(math.nan if trial else 0.5), state="diverged")
    assert "accuracy (%): nan, mean" in text(why(read_results(made.results)))
    half = Made(tmp_path / "half")
    half.add("D", "ERM", ("a", "b"), 0, lambda e, s, t: math.nan if e == "b" else 0.5)
    assert "accuracy (%): nan, one trial" in text(why(read_results(half.results)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "--algorithm must say which algorithm: ERM, a_b%<x>"),
        ({"label": "ERN"}, "unknown algorithm 'ERN'; did you mean ERM?"),
        ({"label": "ERM"}, "--test-env must say which test environment: a, b+c"),
        ({"label": "ERM", "test": "b"}, "unknown test environment 'b'; did you mean b+c?"),
        ({"dataset": "E"}, "unknown dataset 'E'; known: D"),
        ({"rule": "orcale"}, f"unknown selection rule 'orcale'; did you mean oracle?{PLUGIN_HINT}"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, arguments: dict[str, str], message: str) -> None:
    made = Made(tmp_path)
    for label in ("ERM", "a_b%<x>"):
        for test in (("a",), ("b", "c")):
            made.add("D", label, test, 0, flat(0.5))
    frames = read_results(made.results)
    with pytest.raises(UserError) as told:
        why(frames, **arguments)
    assert str(told.value) == message
    assert why(frames, label="a_b%<x>", test="b+c").label == "a_b%<x>"
