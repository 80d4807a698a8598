"""Freezing results: what is frozen, that it never changes, and what is refused."""

import io
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oodbench.board.freeze import freeze
from oodbench.errors import UserError
from oodbench.results.predictions import predictions_of_runs
from oodbench.results.read import read_board
from tests.helpers.results.boards import (
    PROTOCOL,
    SEM,
    edited_board,
    edited_results,
    invoke,
    new_board,
    remove,
    stored,
    trained,
)

pytestmark = pytest.mark.slow


def contents(board: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in board.iterdir() if path.is_file()}


@pytest.mark.nightly
def test_a_row_that_adapts_keeps_the_draws_of_its_adaptation(tmp_path: Path) -> None:
    rows = {"algorithms": ["ERM", {"name": "ERM", "adapt": "T3A"}], "trials": 2}
    small: dict[str, Any] = {"datasets": [PROTOCOL["datasets"][1]], "hparam_draws": 3, **rows}
    board = new_board(tmp_path, "adapts.v1", **small)
    freeze(trained(tmp_path, "out", **small), board)
    tables = stored(board)
    adapted = tables.runs[tables.row("digits", "ERM + T3A")]
    assert len(adapted) == 6 and adapted["adapt"].map(str).nunique() > 1
    metrics = tables.records.loc[tables.records["id"].isin(adapted["id"]), "metric"]
    assert "accuracy (before)" in set(metrics)


def test_rows_are_added_to_the_others(board: Path, half: Path, copy: Path, mine: Path) -> None:
    added, there = freeze(half, copy)
    assert (len(added), len(there)) == (0, 4) and contents(copy) == contents(board)
    before = stored(copy)
    assert "is as it must be" in invoke("validate", mine, copy)
    assert freeze(mine, copy)[0] == [("SEM", "VREx"), ("digits", "VREx")]
    after = stored(copy)
    kept = after.runs["label"] != "VREx"
    assert kept.sum() == len(before.runs) == len(after.runs) * 2 / 3
    assert after.runs[kept].reset_index(drop=True).equals(before.runs)
    records = after.records[after.records["id"].isin(before.runs["id"])]
    assert records.reset_index(drop=True).equals(before.records)


def test_a_frozen_row_is_never_changed(copy: Path, half: Path) -> None:
    with edited_board(copy) as tables:
        of_row = tables.records["id"].isin(tables.runs.loc[tables.row("SEM", "ERM"), "id"])
        tables.records.loc[of_row & tables.records["metric"].eq("mse"), "value"] = 1.0
    remove(copy, "digits", "IRM")
    before = contents(copy)
    with pytest.raises(UserError, match="ERM on SEM is frozen with other numbers: what changes a"):
        freeze(half, copy)
    assert contents(copy) == before


def test_a_run_that_stands_in_two_rows_is_frozen_once(tmp_path: Path) -> None:
    first, second = "ERM", {"name": "ERM", "label": "again"}
    small = {"datasets": [SEM], "trials": 1, "hparam_draws": 2}
    board = new_board(tmp_path, "twice.v1", algorithms=[first, second], **small)
    results = trained(tmp_path, "first", algorithms=[first], keep_predictions=True, **small)
    assert freeze(results, board, predictions=True)[0] == [("SEM", "ERM")]
    both = trained(tmp_path, "both", algorithms=[first, second], keep_predictions=True, **small)
    before = stored(board).records
    assert freeze(both, board, predictions=True)[0] == [("SEM", "again")]
    assert list(stored(board).runs["id"].value_counts()) == [2, 2]
    assert stored(board).records.equals(before)
    assert "is as it must be" in invoke("validate", board)
    runs = read_board(board).runs
    read = predictions_of_runs(runs)
    assert {len(read(run_id, step)) for run_id in runs["id"] for step in (10, 20)} <= {0, 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 3}, "ERM on SEM: trial 3 missing"),
        ({"hparam_draws": 3}, "ERM on SEM: draw 3 missing"),
        ({"steps": 30}, r"runs are under another protocol, first run \w+: .*steps is 30, not 20"),
    ],
)
def test_results_that_are_not_the_whole_protocol_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    results = trained(tmp_path, "out", algorithms=["ERM"], datasets=[SEM], **changes)
    board = new_board(tmp_path, "b")
    with pytest.raises(UserError, match=message):
        freeze(results, board)
    assert [path.name for path in board.iterdir()] == ["protocol.yaml"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection": "oracle"}, "no board is ranked by it"),
        ({"test_environments": "pairs"}, "cannot hold"),
        ({"datasets": [SEM | {"training": {"test_environments": "pairs"}}]}, "a list of lists of"),
        ({"datasets": [{"name": "FourPoints", "num_examples": 9}]}, "give it a `label`, t"),
        ({"datasets": [{"name": "ImageFolder", "root": "x"}]}, "gives ImageFolder options: "),
        ({"datasets": [{"name": "Table", "file": "a.csv", "label": ""}]}, "Table options: give"),
        ({"algorithms": ["ERM", {"name": "ERM", "ceiling": True}]}, "two algorithms called 'ERM'"),
        ({"datasets": [SEM, SEM]}, "two datasets called 'SEM'"),
    ],
)
def test_what_cannot_be_a_protocol_is_refused(
    half: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        freeze(half, new_board(tmp_path, "b", **changes))


def test_a_row_of_several_codes_is_refused(half: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(half, tmp_path / "half"))
    with edited_results(copy) as tables:
        first, *others = tables.runs["provenance"]
        tables.runs["provenance"] = [first | {"commit": "0" * 40}, *others]
    board = new_board(tmp_path, "b")
    with pytest.raises(UserError, match="several codes"):
        freeze(copy, board)
    text = invoke("validate", copy, board, code=1)
    assert "on SEM: its runs were trained by several codes" in " ".join(text.split())


def test_the_predictions_of_a_board_are_those_of_the_directory(copy: Path, kept: Path) -> None:
    """They were trained one by one, and have the bits of the runs that were trained side by side."""
    before = contents(copy)
    assert "0 rows" in invoke("freeze", kept, copy, "--predictions")
    assert contents(copy) == before
    (file,) = (copy / "predictions").iterdir()
    written = file.read_bytes()
    invoke("freeze", kept, copy, "--predictions")
    assert file.read_bytes() == written
    for rule in ("train_val", "oracle"):
        names = ["label", "mean", "stderr"]
        shown = (leaderboard_of(source, rule, "auroc")[names] for source in (copy, kept))
        ours, theirs = (table.sort_values(names, ignore_index=True) for table in shown)
        assert ours["mean"].notna().any()
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    plain = pd.read_parquet(file)
    assert list(plain)[:7] == ["id", "step", "environment", "index", "split", "kind", "target"]
    assert set(plain["environment"]) == {"0.9"} and plain["output_0"].dtype == "float32"


def leaderboard_of(source: Path, rule: str, metric: str) -> pd.DataFrame:
    options = ("--rule", rule, "--metric", metric, "--format", "csv")
    text = invoke("table", source, "--dataset", "digits", *options)
    return pd.read_csv(io.StringIO(text))


def test_damaged_predictions_are_named(copy: Path, kept: Path) -> None:
    invoke("freeze", kept, copy, "--predictions")
    (file,) = (copy / "predictions").iterdir()
    for content in (file.read_bytes()[:-9], b"", b"PAR1 and more"):
        file.write_bytes(content)
        assert f"{file} is torn" in invoke("table", copy, "--metric", "auroc", code=2)


@pytest.mark.nightly
def test_a_dataset_of_a_board_may_have_more_trials(tmp_path: Path) -> None:
    sem = SEM | {"training": {"trials": 3}}
    small: dict[str, Any] = {"algorithms": ["ERM", "IRM"], "hparam_draws": 2, "trials": 2}
    board = new_board(tmp_path, "own.v1", **small, datasets=[sem, PROTOCOL["datasets"][1]])
    invoke("run", board, "--algorithm", "all", "--out", tmp_path / "all", "--workers", 1)
    assert "4 rows" in invoke("freeze", tmp_path / "all", board)
    assert "is as it must be" in invoke("validate", board)
    assert "trials: 2 to 3, hparam draws: 2" in invoke("table", board, "--notes")
    run = ("run", board, "--algorithm", "VREx", "--workers", 1)
    whole = invoke(*run, "--out", tmp_path / "whole")
    assert "10 runs" in whole and "Partial" not in whole
    cut = " ".join(invoke(*run, "--trials", 2, "--out", tmp_path / "cut").split())
    assert "8 runs" in cut and "all rows are cut to 2 of 3 trials" in cut
    assert "has 3 trials, not 4" in invoke(*run, "--trials", 4, "--out", "x", code=2)
    with edited_board(board) as tables:
        tables.runs = tables.runs[~tables.row("SEM", "IRM") | tables.runs["trial"].lt(2)]
    assert "IRM on SEM: trial 2 missing (3 are planned)" in invoke("validate", board, code=1)


@pytest.mark.nightly
def test_a_board_that_is_frozen_in_part_says_what_is_to_come(copy: Path, tmp_path: Path) -> None:
    remove(copy, "digits")
    assert "Not frozen yet: digits" in invoke("table", copy, "--notes")
    assert "1 dataset not frozen yet" in invoke("table", copy)
    assert "Not frozen yet: digits" in invoke("compare", copy, "--format", "markdown")
    assert invoke("validate", copy).startswith("Not frozen yet: digits.\n")
    assert "Of 3 runs" in invoke("rerun", copy, "--sample", 3)
    run = invoke("run", copy, "--algorithm", "VREx", "--trials", 1, "--out", tmp_path / "out")
    assert "Not frozen yet: digits; they are left out" in run and "4 runs" in run


def test_results_of_what_is_not_frozen_yet_are_left_out(copy: Path, mine: Path) -> None:
    remove(copy, "digits")
    shown = invoke("table", copy, mine)
    assert "VREx" in shown and "digits:" not in shown
    only_digits = ("table", copy, mine, "--dataset", "digits")
    assert "unknown dataset 'digits'" in invoke(*only_digits, code=2)


@pytest.mark.nightly
def test_notes_are_on_the_datasets_that_are_shown(copy: Path, tmp_path: Path) -> None:
    run = ("run", copy, "--algorithm", "VREx", "--workers", 1, "--out", tmp_path / "out")
    invoke(*run, "--dataset", "SEM")
    invoke(*run, "--dataset", "digits", "--trials", 2, "--draws", 2)
    both = " ".join(invoke("table", copy, tmp_path / "out", "--notes").split())
    assert "Partial: all rows are cut to 2 of 4 trials, 2 of 4 draws" in both
    sem = invoke("table", copy, tmp_path / "out", "--dataset", "SEM", "--notes")
    assert "trials: 4, hparam draws: 4" in sem and "Partial" not in sem
