from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.report.cells import CEILING, scores
from oodbench.report.comparison import board_sheet, comparison
from oodbench.report.tables import FORMATS
from oodbench.report.tables.leaderboard import Leaderboard
from oodbench.report.tables.sheet import blocks, sheet
from oodbench.results.read import read_results
from oodbench.results.tables import only
from tests.helpers.results.made import Curve, Made, flat, leaderboard, texts


def board_of(made: Made, rule: str | None = None) -> Leaderboard:
    return leaderboard(read_results(made.results), rule)


def remarks(made: Made) -> tuple[str, ...]:
    return texts(board_of(made).remarks)


def add(made: Made, dataset: str, levels: dict[str, float], trials: int = 3, **about: Any) -> None:
    """Trials of each label with the test environment `b`, which rise by 0.01."""
    for label, level in levels.items():
        for trial in range(trials):
            made.add(dataset, label, ("b",), trial, flat(level + trial / 100), **about)


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


def test_a_finding_says_where_two_rules_differ_beyond_both_errors(tmp_path: Path) -> None:
    made = with_validation(tmp_path, {"ERM": 1.0, "IRM": 0.5})
    (finding,) = texts(board_of(made).findings)
    assert "ERM on D has 39.9 ± 0.1 by val_env and 19.7 ± 0.2 by train_val, " in finding
    assert finding.endswith("beyond both errors, and 1 more cell differs so.")
    (turned,) = texts(board_of(made, "train_val").findings)
    assert "19.7 ± 0.2 by train_val and 39.9 ± 0.1 by val_env" in turned
    assert texts(board_of(made, "oracle").findings) == ()


def answered(value: float) -> dict[str, dict[str, dict[str, float]]]:
    """A constant answer with this accuracy everywhere."""
    return {"accuracy": {e: {"in": value, "out": value} for e in ("a", "b", "c")}}


def with_references(
    path: Path,
    values: dict[str, float],
    ceilings: Collection[str] = ("clean",),
    constant: float = 0.6,
) -> Made:
    """Three trials of each label, which vary by 0.01, with a constant answer and ceilings."""
    made = Made(path)
    for label, value in values.items():
        for trial in range(3):
            known = answered(constant + trial / 1000)
            curve, is_ceiling = flat(value + trial / 100), label in ceilings
            made.add("D", label, ("b",), trial, curve, constant=known, ceiling=is_ceiling)
    return made


def test_the_constant_answer_and_ceilings_are_grey_rows(tmp_path: Path) -> None:
    board = board_of(with_references(tmp_path, {"clean": 0.9, "ERM": 0.7, "IRM": 0.65}))
    frames = board.chosen.tables
    (block,) = blocks(board)
    assert block.rows[3] == ["constant", "60.1 ± 0.1", "3"]
    assert (block.ranked, block.grey, block.best) == (2, 2, {(0, 1)})
    assert set(scores(board.cells)["label"]) == {"ERM", "IRM"}
    assert set(comparison(frames, "ERM").frame["label"]) == {"IRM"}
    with pytest.raises(UserError, match="unknown baseline 'constant'"):
        comparison(frames, "constant")
    for format_, mark in (("markdown", "*constant*"), ("latex", r"\textcolor{gray}{constant}")):
        assert mark in FORMATS[format_](sheet(board))


def test_methods_that_see_test_inputs_are_ranked_apart(tmp_path: Path) -> None:
    made = Made(tmp_path)
    add(made, "D", {"ERM": 0.7, "IRM": 0.8})
    for dataset in "DE":
        add(made, dataset, {"MTL": 0.9, "ARM": 0.95}, transductive=True)
    board = board_of(made)
    first, apart, alone, *_ = blocks(board)
    assert [row[0] for row in first.rows] == ["IRM", "ERM"] and first.best == {(0, 1)}
    assert apart.title == "D: accuracy (%), of transductive methods"
    assert [row[0] for row in apart.rows] == ["ARM", "MTL"]
    assert (apart.ranked, apart.grey, apart.best) == (2, 0, {(0, 1)})
    # without others they are what is ranked
    assert alone.title == "E: accuracy (%)" and [row[0] for row in alone.rows] == ["ARM", "MTL"]
    assert set(scores(board.cells).query("dataset == 'D'")["label"]) == {"ERM", "IRM"}
    text = FORMATS["latex"](replace(sheet(board), paper=None))
    label = r"\label{tab:d-accuracy-of-transductive-methods}"
    assert label in text and "depend on the other" in text


def test_references_stand_in_grey_and_are_not_ranked(tmp_path: Path) -> None:
    made = Made(tmp_path)
    add(made, "D", {"ERM": 0.7, "IRM": 0.8})
    for dataset in "DE":
        add(made, dataset, {"Forest": 0.9}, reference=True)
    add(made, "D", {"top": 0.9}, options={"as_test": "b"}, reference=True, ceiling=True)
    board = board_of(made)
    assert set(scores(board.cells, CEILING)["label"]) == {"top"}
    first, alone, *_ = blocks(board)
    assert [row[0] for row in first.rows] == ["IRM", "ERM", "Forest", "top"]
    assert (first.ranked, first.grey, first.best) == (2, 2, {(0, 1)})
    # without methods they are what is ranked
    assert [row[0] for row in alone.rows] == ["Forest"] and alone.ranked == 1
    assert set(scores(board.cells).query("dataset == 'D'")["label"]) == {"ERM", "IRM"}
    compared = comparison(board.chosen.tables, "ERM").frame
    assert set(compared.loc[compared["dataset"] == "D", "label"]) == {"IRM"}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"ERM": 0.6, "IRM": 0.61}, "No row of D differs from the constant answer"),
        ({"ERM": 0.6, "IRM": 0.5}, "No row of D is better than the constant answer"),
        ({"ERM": 0.6, "IRM": 0.7}, ""),
    ],
)
def test_a_finding_says_that_no_row_differs_from_the_constant_answer(
    tmp_path: Path, values: dict[str, float], sentence: str
) -> None:
    found = texts(board_of(with_references(tmp_path, {"clean": 0.9, **values})).findings)
    assert [text.partition(" (")[0] for text in found] == [sentence] * bool(sentence)


def test_a_finding_on_the_constant_answer_is_of_all_rows(tmp_path: Path) -> None:
    tables = read_results(with_references(tmp_path, {"ERM": 0.61, "IRM": 0.9}, ()).results)
    found = texts(board_sheet(tables, shown=only(tables, (), ["ERM"])).notes)
    assert not [text for text in found if text.startswith("No row of D")]


@pytest.mark.parametrize(("best", "bold"), [(0.61, set()), (0.5, set()), (0.7, {(0, 1)})])
def test_nothing_is_bold_that_is_not_better_than_the_constant_answer(
    tmp_path: Path, best: float, bold: set[tuple[int, int]]
) -> None:
    values = {"IRM": best, "ERM": best - 0.001, "VREx": best - 0.002}
    made = with_references(tmp_path, values, ceilings=())
    lower = {label: value - i for i, (label, value) in enumerate(values.items())}
    add(made, "E", lower, metric="mse", constant={})
    block, other, over = blocks(board_of(made))
    assert block.best == bold and bool(block.second | block.near) == bool(bold)
    assert other.best == {(0, 1)}  # without a constant answer
    assert {place for place in over.best if place[1] == 1} == bold
    alone = with_references(tmp_path / "alone", values, ceilings=())
    assert (r"\textbf" in FORMATS["latex"](sheet(board_of(alone)))) == bool(bold)


def test_two_trials_cannot_tell_a_row_from_the_constant_answer(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial, value in enumerate((0.9, 0.7)):
        made.add("D", "ERM", ("b",), trial, flat(value), constant=answered(0.6))
    (found,) = texts(board_of(made).findings)
    assert found.startswith("Two trials are too few to tell rows of D from the constant answer (")


def test_two_trials_give_no_error(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial in range(2):
        made.add("D", "ERM", ("b",), trial, flat(0.5 + trial / 10))
    shown = sheet(board_of(made))
    assert shown.blocks[0].rows == [["ERM", "55.0", "2"]]
    assert "trials: 2, too few for an error, hparam draws: 1." in texts(shown.notes)[1]
    made.add("D", "ERM", ("b",), 2, flat(0.7))
    shown = sheet(board_of(made))
    assert shown.blocks[0].rows == [["ERM", "60.0 ± 5.8", "3"]]


def test_rows_that_are_equal_in_every_chosen_value_are_told(tmp_path: Path) -> None:
    made = Made(tmp_path)
    levels = {"ERM": 0.5, "SD": 0.7, "IRM": 0.5, "CORAL": 0.7, "VREx": 0.5, "Fish": 0.6}
    for dataset in ("D", "E"):
        for label, level in levels.items():
            for trial in range(3):
                off = 0.01 * (label == "VREx" and dataset == "E" and trial == 2)
                made.add(dataset, label, ("b",), trial, flat(level + trial / 20 + off))
    findings = board_of(made).findings
    pairs = (("IRM", "ERM"), ("CORAL", "SD"))
    assert texts(findings) == tuple(f"{a}: equal to {b} in every chosen value." for a, b in pairs)
    brief = "2 rows equal in every chosen value: ERM, IRM."
    assert brief in [getattr(n, "brief", "") for n in findings]


def test_a_constant_answer_that_a_trial_lacks_is_incomplete(tmp_path: Path) -> None:
    made = with_references(tmp_path, {"ERM": 0.7})
    made.add("D", "ERM", ("b",), 3, shortcut(0.0), state="planned")
    (block,) = blocks(board_of(made))
    assert [row[-1] for row in block.rows] == ["3/4", "3/4"] and block.grey == 1


def test_runs_that_diverged_are_counted_and_named(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial in range(5):
        made.add("D", "ERM", ("b",), trial, flat(0.5), state="done" if trial else "diverged")
    found = remarks(made)
    assert found[0].startswith("Runs: 4 done, 1 diverged")
    assert found[1].endswith("with what they recorded: ERM on D (test b, trial 0, draw 0).")
    for trial in range(5):
        made.add("D", "IRM", ("b",), trial, flat(0.5), state="diverged")
    (named,) = [r for r in remarks(made) if "Diverged" in r]
    assert named.endswith("IRM on D (test b, trial 1, draw 0), 3 more.")


def test_broken_runs_are_counted_nowhere_and_named_with_what_is_wrong(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial in range(5):
        run = made.results.run(made.add("D", "ERM", ("b",), trial, flat(0.5)))
        if trial:
            (run.path / "metrics.jsonl").unlink()
    frame, (counts, broken, *_) = board_of(made).frame, remarks(made)
    assert set(frame["n"]) == {1} and set(frame["planned"]) == {5}
    assert counts.startswith("Runs: 1 done, 0 diverged, 0 failed, 4 broken, 0 missing")
    assert broken.startswith("Broken, counted nowhere: ERM on D (test b, trial 1, draw 0), as ")
    reason = "metrics.jsonl is not what the run ended with"
    assert broken.count(reason) == 3 and broken.endswith("; 1 more.")


def test_several_settings_under_one_name_are_told(tmp_path: Path) -> None:
    """An edited sweep that is launched into the same directory leaves its former runs there."""
    made = Made(tmp_path)
    for label in ("ERM", "IRM"):
        for draw in range(2):
            made.add("D", label, ("b",), 0, flat(0.5), draw=draw)
    assert not [r for r in remarks(made) if "one name" in r]
    made.add("D", "IRM", ("b",), 0, flat(0.6), hparams={"lr": 0.3, "optimizer": "adam"})
    (remark,) = [r for r in remarks(made) if "one name" in r]
    assert remark.startswith("Several settings under one name: IRM on D. The rule chooses")


def test_runs_that_were_trained_differently_are_told(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial in range(3):
        made.add("D", "ERM", ("b",), trial, flat(0.5))
    frames = read_results(made.results)
    assert not [r for r in texts(leaderboard(frames).remarks) if "differently" in r]
    alike = {"threads": 1, "torch": "2.11"}
    unlike = [{"device": f"cuda:{i}", "vectorized": i > 0} for i in range(3)]
    frames.runs["provenance"] = [alike | each for each in unlike]
    told = texts(leaderboard(frames).remarks)[-1]
    assert told.endswith("equal up to round-off: vectorized: no (1 run), yes (2 runs).")
    frames.runs["provenance"] = [{"threads": 1 + i % 2, "device": "cpu"} for i in range(3)]
    assert "threads: 1 (2 runs), 2 (1 run)" in texts(leaderboard(frames).remarks)[-1]
    frames.runs.loc[2, "state"] = "lost"  # it counts nowhere, and is missing
    assert "threads: 1 (1 run), 2 (1 run)" in texts(leaderboard(frames).remarks)[-1]
