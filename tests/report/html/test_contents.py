import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oodbench.report.cells import scores
from oodbench.report.html import contents
from oodbench.report.numbers import with_error
from oodbench.report.statistics import paired_differences
from oodbench.report.tables.leaderboard import is_mean, leaderboard
from oodbench.results.read import joined, read_results
from oodbench.results.tables import Tables
from tests.helpers.results.made import Made, flat
from tests.report.html.conftest import NASTY, PERCENT

VALUE, SHARE, GAIN, COLOUR, SIGN, FACTS, RUNS = range(7)
"""The places in a cell."""


def page(path: Path) -> dict[str, Any]:
    return contents(joined([path]))


def labels(tree: dict[str, Any]) -> list[str]:
    return [row["label"] for row in tree["rows"]]


def cells(tree: dict[str, Any], rule: str) -> dict[tuple[str, str], list[Any]]:
    """The cells of a rule that have runs, by dataset and label."""
    return {
        (dataset["name"], label): cell
        for dataset, row in zip(tree["datasets"], tree["rules"][rule]["cells"], strict=True)
        for label, cell in zip(labels(tree), row, strict=True)
        if cell is not None
    }


def view(tree: dict[str, Any], name: str, rule: str | None = None) -> dict[str, Any]:
    """A view by its name, with `rows` by label: mean, low, high, texts, ranked."""
    (found,) = (v for v in tree["rules"][rule or tree["rule"]]["views"] if v["name"] == name)
    return {**found, "rows": {labels(tree)[r]: numbers for r, *numbers in found["rows"]}}


@pytest.fixture(scope="module")
def tree(made: Made) -> dict[str, Any]:
    return page(made.results.path)


@pytest.fixture(scope="module")
def board(kinds: tuple[Tables, pd.DataFrame]) -> dict[str, Any]:
    return contents(kinds[0])


@pytest.mark.parametrize("rule", ["train_val", "oracle"])
def test_its_numbers_are_those_of_the_table(made: Made, tree: dict[str, Any], rule: str) -> None:
    board = leaderboard(read_results(made.results), rule)
    frame, chosen = board.frame, board.chosen.chosen
    for row in frame[is_mean(frame)].to_dict(orient="records"):
        cell = cells(tree, rule)[row["dataset"], row["label"]]
        assert cell[VALUE] == str(with_error(row["mean"], row["stderr"], row["metric"]))
    for d, columns in enumerate(tree["rules"][rule]["environments"]):
        for column in columns:
            of_dataset = frame["dataset"] == tree["datasets"][d]["name"]
            own = frame[of_dataset & (frame["environment"] == column["name"])]
            own = own[["mean", "stderr", "metric"]].to_numpy()
            assert column["texts"] == [str(with_error(*row)) for row in own]
    for key, cell in cells(tree, rule).items():
        runs = chosen[(chosen["dataset_label"] == key[0]) & (chosen["label"] == key[1])]
        tests, ties, *numbers = cell[RUNS]
        assert tests == ["+".join(t) for t in runs["test_environments"]] and len(ties) in (0, 6)
        assert numbers[:3] == [list(runs[name]) for name in ("trial", "draw", "step")]
        assert numbers[3] == pytest.approx(list(runs["score"]), rel=1e-3)
        mean = sum(numbers[4]) / len(numbers[4])
        assert float(cell[VALUE].split(" ")[0]) == pytest.approx(100 * mean, abs=0.051)


def test_an_environment_may_be_called_mean(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for test in ("a", "mean"):
        made.add("D", "ERM", (test,), 0, flat(0.5))
    (environments,) = page(made.results.path)["rules"]["train_val"]["environments"]
    assert [column["name"] for column in environments] == ["a", "mean"]


def test_gains_are_paired_and_in_points(made: Made, tree: dict[str, Any]) -> None:
    table = scores(leaderboard(read_results(made.results), "train_val").cells)
    for name in (NASTY, PERCENT):
        shown = view(tree, name, "train_val")
        for d in paired_differences(table[table["dataset"] == name], "ERM"):
            *numbers, texts, ranked = shown["rows"][d.label]
            wanted = [100 * v for v in (d.gain.mean, d.gain.low, d.gain.high)]
            known = [math.nan if v is None else v for v in numbers]
            assert known == pytest.approx(wanted, rel=1e-3, nan_ok=True)
            assert math.isnan(known[1]) == (d.gain.n < 3)
            assert texts == ["+10.0 [+10.0, +10.0]", "3"] or name == PERCENT or d.label == "VREx"
            assert ranked == (d.pairs == d.planned) == (d.label != "VREx")
        assert shown["marks"] == [["ERM", 0.0]] and "(points)" in shown["picture"]
        assert list(shown["rows"]) == ["IRM", "ERM", "VREx"]  # VREx lacks a trial
    assert view(tree, NASTY)["finding"] == (
        f"The one other row is better than ERM on {NASTY} after Holm's correction; "
        "IRM gains +10.0 [+10.0, +10.0] points."
    )


def test_a_single_row_that_is_equal_to_the_baseline_gains_nothing(tmp_path: Path) -> None:
    made = Made(tmp_path)
    for trial in range(3):
        for label in ("ERM", "IRM"):
            made.add("D", label, ("b",), trial, flat(0.5 + trial / 10))
    finding = view(page(made.results.path), "D")["finding"]
    assert finding.startswith("The one other row is neither better nor worse than ERM on D")
    assert finding.endswith("; IRM gains nothing.")


def test_without_ceilings_datasets_are_averaged_as_gains(tree: dict[str, Any]) -> None:
    shown = view(tree, "all")
    mean, *interval = shown["rows"]["IRM"][:3]
    assert mean == pytest.approx(9.0, abs=0.01) and interval == [None, None]
    assert shown["rows"]["IRM"][3] == ["+9.0", "1.00"]
    wanted = "IRM gains +9.0 points; two datasets give no interval."
    assert shown["finding"] == wanted
    assert {cell[SHARE] for cell in cells(tree, "train_val").values()} == {""}
    low, high, ticks = shown["axis"]
    assert low < 0.0 and high > 9.0 and all(low <= tick <= high for tick in ticks)


def test_a_board_is_one_sentence_on_shares(board: dict[str, Any]) -> None:
    """`tests/docs` has the whole page of a board."""
    shown = view(board, "all")
    assert "No share is given where the head-room is not clear: delta." in shown["note"]
    assert "the first, A, closes 0." in shown["finding"] and shown["finding"].count(". ") == 0
    marks = dict(view(board, "beta, b")["marks"])
    assert marks["ERM"] == 0 and marks["ceiling"] == pytest.approx(1.6, abs=0.05)


def test_unfinished_runs_have_their_reasons(tree: dict[str, Any]) -> None:
    assert {tuple(run[3:]) for run in tree["unfinished"]} == {
        ("failed", "ValueError: <b>no</b>"),
        ("diverged", "the loss was not finite at step 30"),
        ("lost", "launching the sweep again continues it"),
    }
    assert len(tree["unfinished"]) == 2 + 2 + 4
    assert tree["states"] == {"done": 64, "diverged": 4, "lost": 2, "failed": 2}


def test_a_sweep_without_the_baseline_shows_values(tmp_path: Path) -> None:
    sweep = Made(tmp_path)
    for trial in range(3):
        sweep.add("D", "IRM", ("a",), trial, flat(0.5 + trial / 10))
    tree = page(sweep.results.path)
    assert tree["baseline"] is None
    shown = view(tree, "D")
    assert shown["rows"]["IRM"][0] == pytest.approx(60) and shown["marks"] == []
    assert shown["finding"] == "IRM has the best accuracy of 1 row." and "(%)" in shown["picture"]
