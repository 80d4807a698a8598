"""A board beside runs trained here: exactly what one sweep of all of them would have printed."""

import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oodbench.board.freeze import freeze
from oodbench.errors import UserError
from oodbench.report.cells import scores
from oodbench.report.comparison import compare_own_rows, comparison
from oodbench.report.html import contents
from oodbench.report.sources import beside_board
from oodbench.report.tables import Block
from oodbench.report.tables.remarks import range_notes, trained_by
from oodbench.report.tables.sheet import sheet
from oodbench.results.read import joined, read_board, read_results
from oodbench.results.tables import Tables, origins
from oodbench.selection.judge import judge
from tests.helpers.results.boards import ONE_RUN, SEM, edited_results, new_board, trained
from tests.helpers.results.made import Made, leaderboard, rising, texts

pytestmark = pytest.mark.slow


def together(results: Path) -> Tables:
    """The runs of a sweep, with what is told of its rows' ranges and what trained them beside a board."""
    frames = joined([results])
    return replace(frames, notes=(*range_notes(frames.runs), trained_by(frames.runs)))


@pytest.fixture(scope="module")
def split(board: Path, mine: Path) -> Tables:
    """Two rows that are frozen, and the third beside them."""
    return beside_board(str(board), [mine])


@pytest.mark.parametrize("rule", ["train_val", "val_env", "oracle"])
def test_half_of_it_frozen_a_sweep_has_equal_tables(split: Tables, whole: Path, rule: str) -> None:
    joint = together(whole)
    pd.testing.assert_frame_equal(judge(split, rule).tied, judge(joint, rule).tied)
    ours, theirs = leaderboard(split, rule), leaderboard(joint, rule)
    pd.testing.assert_frame_equal(ours.frame.drop(columns="from"), theirs.frame)
    assert texts(ours.notes) == texts(theirs.notes)
    assert texts(ours.findings) == texts(theirs.findings)
    compared, alone = (comparison(tables, "ERM", rule) for tables in (split, joint))
    pd.testing.assert_frame_equal(compared.frame, alone.frame)
    assert texts(compared.notes) == texts(alone.notes)
    for mixed, plain in zip(compared.blocks, alone.blocks, strict=True):
        columns = len(plain.header)
        assert mixed.title == plain.title
        assert [row[:columns] for row in mixed.rows] == plain.rows
        assert (mixed.best, mixed.near, mixed.ranked) == (plain.best, plain.near, plain.ranked)


def test_a_board_holds_several_test_environments_out_at_once(tmp_path: Path) -> None:
    sets = {"training": {"test_environments": [[0.2, 1], [2, 5]]}}
    changes: dict[str, Any] = {
        **{"datasets": [SEM | sets], "trials": 2, "hparam_draws": 1},
        **{"validation_environments": "none"},
        "algorithms": ["ERM", {"name": "LeastSquares", "label": "ceiling", "ceiling": True}],
    }
    whole = trained(tmp_path, "whole", **changes)
    board = new_board(tmp_path, "several.v1", **changes)
    freeze(whole, board)
    ours, theirs = (leaderboard(frames) for frames in (read_board(board), joined([whole])))
    pd.testing.assert_frame_equal(ours.frame, theirs.frame)
    shown = sheet(ours).blocks[0]
    assert shown.header[1:6] == ["0.2", "1", "2", "5", "mean"]


def own_rows(frames: Tables, rule: str | None = None) -> Block | None:
    return compare_own_rows(scores(leaderboard(frames, rule).cells), origins(frames.runs))


def test_what_is_trained_here_has_its_rank_and_its_gains(split: Tables) -> None:
    found = own_rows(split, "val_env")
    assert found is not None
    gains = comparison(split, "ERM", "val_env").frame.set_index(["dataset", "label"])["gain"]
    for row in found.rows:
        assert row[1] == "VREx" and row[2].endswith(" of 3") and row[4] in ("ERM", "IRM")
        assert re.fullmatch(r"\S+ \[\S+, \S+\]", row[3])
        if row[0] == "digits":
            assert row[3].startswith(f"{100 * gains[row[0], 'VREx']:+.1f} [")


def test_a_row_that_lacks_a_dataset_has_no_mean_over_them(tmp_path: Path) -> None:
    made = Made(tmp_path / "results")
    for dataset, labels in (("D", ("ERM", "A", "B")), ("E", ("ERM", "A"))):
        for i, label in enumerate(labels):
            for trial in (0, 1):
                made.add(dataset, label, ("a",), trial, rising(0.5 + 0.1 * i + 0.01 * trial))
    frames = read_results(made.results)
    found = own_rows(replace(frames, runs=frames.runs.assign(frozen=False)), "train_val")
    assert found is not None
    mean = {row[1]: row[2:] for row in found.rows if row[0] == "datasets in %"}
    assert set(mean) == {"ERM", "A", "B"} and set(mean["B"]) == {"-"}
    assert (mean["A"][0], mean["ERM"][0]) == ("1.00 of 2", "2.00 of 2")
    assert mean["A"][1] == "+10.0"  # two datasets give no interval


def test_a_transductive_method_is_ranked_apart(board: Path, tmp_path: Path) -> None:
    mine = trained(tmp_path, "mine", algorithms=["MTL"], datasets=[SEM])
    found = leaderboard(beside_board(str(board), [mine])).frame
    kinds = found.drop_duplicates("label").set_index("label")["kind"]
    methods = dict.fromkeys(("ERM", "IRM"), "method")
    assert dict(kinds) == {**methods, "MTL": "transductive", "constant": "constant"}


@pytest.mark.nightly
def test_own_rows_are_cut_to_what_they_share(board: Path, half: Path, tmp_path: Path) -> None:
    rows = [{"name": "VREx", "label": label} for label in ("few", "more")]
    few = trained(tmp_path, "few", algorithms=rows[:1], trials=2, hparam_draws=2)
    more = trained(tmp_path, "more", algorithms=rows[1:], trials=3, hparam_draws=3)
    frames = beside_board(str(board), [few, more])
    for _, runs in frames.runs.groupby(["dataset_label", "label"]):
        assert {*zip(runs["trial"], runs["draw"], strict=True)} == {*product((0, 1), repeat=2)}
    frames = beside_board(str(board), [few, half])
    assert "ERM, IRM on SEM: 8 of 8 runs here are equal to the board's." in texts(frames.notes)
    other = trained(tmp_path, "other", **ONE_RUN | {"trials": [3]})
    with pytest.raises(UserError, match=r"the rows on SEM in .* have no trial in common"):
        beside_board(str(board), [few, other])


def test_rows_whose_ranges_are_not_the_others_are_named(board: Path, tmp_path: Path) -> None:
    rows = [{"name": "VREx", "label": "fast", "hparams": {"lr": 0.9, "weight_decay": 0.0}}]
    mine = trained(tmp_path, "mine", **ONE_RUN | {"algorithms": rows})
    kinds = "The search ranges of IRM depend on the kind of data."
    alone = beside_board(str(board), [])
    assert texts(alone.notes)[:-1] == (kinds,) and own_rows(alone) is None
    (_, *notes, _) = texts(beside_board(str(board), [mine]).notes)
    assert notes == [kinds, "Rows with other values of lr than ERM in the same draw: fast."]


def test_a_frozen_row_trained_again_counts_once(board: Path, half: Path, mine: Path) -> None:
    frames = beside_board(str(board), [half, mine])
    assert frames.runs["id"].is_unique
    assert len(frames.runs) == 96
    assert "ERM, IRM on SEM: 32 of 32 runs here are equal to the board's." in texts(frames.notes)
    found = leaderboard(frames)
    where = dict(zip(found.frame["label"], found.frame["from"], strict=True))
    assert where == {"ERM": "board, here", "IRM": "board, here", "VREx": "here", "constant": ""}


def test_a_frozen_row_of_another_name_stands_beside_it(board: Path, tmp_path: Path) -> None:
    rows = [{"name": "ERM", "label": "renamed"}, "ERM"]
    mine = trained(tmp_path, "mine", algorithms=rows, datasets=[SEM])
    frames = beside_board(str(board), [mine])
    assert frames.runs["id"].is_unique
    assert "ERM on SEM: 16 of 16 runs here are equal to the board's." in texts(frames.notes)
    means = leaderboard(frames).frame.query("environment == 'mean'").set_index("label")["mean"]
    assert means["renamed"] == means["ERM"]


def changed(results: Path, copy: Path) -> Path:
    """A copy of results in which the values of one run of ERM on SEM are others."""
    shutil.copytree(results, copy)
    with edited_results(copy) as tables:
        first = tables.runs.query("label == 'ERM' and dataset == 'LinearSEM'")
        first = first.query("trial == 0 and draw == 0")
        tables.records.loc[tables.records["id"] == first["id"].iloc[0], "value"] += 0.5
    return copy


def test_a_row_that_disagrees_is_shown_beside_it(board: Path, half: Path, tmp_path: Path) -> None:
    frames = beside_board(str(board), [changed(half, tmp_path / "half")])
    assert frames.runs["id"].is_unique
    *_, unlike, made = texts(frames.notes)
    assert "IRM on SEM: 16 of 16 runs here are equal to the board's." in texts(frames.notes)
    assert unlike == (
        "ERM (here) on SEM: of 16 runs that are also on the board, 15 equal bit for bit, 0 equal within "
        "round-off, 1 off, 0 without a result; furthest off is ERM on SEM, trial 0, draw 0, by 0.5 in mse."
    )
    assert made.startswith("Trained by oodbench")
    labels = set(frames.runs.query("dataset_label == 'SEM'")["label"])
    assert labels == {"ERM", "ERM (here)", "IRM"}
    leaderboard(frames)


def test_a_name_that_is_frozen_with_other_code_or_hyperparameters_is_refused(
    board: Path, half: Path, tmp_path: Path
) -> None:
    copy = changed(half, tmp_path / "half")
    with edited_results(copy) as tables:
        for made in tables.runs["provenance"]:
            made["digests"]["method"]["files"] = {"mine.py": "f" * 16}
    with pytest.raises(UserError, match=r"a row 'ERM' on SEM of other code .* another `label`"):
        beside_board(str(board), [copy])
    rows = [{"name": "ERM", "hparams": {"lr": 0.5}}]
    with pytest.raises(UserError, match=r"a row 'ERM' on SEM with other hyperparameters"):
        beside_board(str(board), [trained(tmp_path, "mine", **ONE_RUN | {"algorithms": rows})])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"steps": 30, "trials": [7], "network": {"name": "MLP", "hparams": {"width": 5}}},
            r"steps of SEM is 30, and \d+ there; .*network of SEM is .*; trial of SEM is 7, which no froz",
        ),
        ({"validation_environments": "none"}, r"validation environments of SEM is \[\]"),
        ({"datasets": [SEM | {"label": "model"}]}, "holds model, which"),
        ({"algorithms": [{"name": "VREx", "hparams": {"batch_size": 7}}]}, "batch size of SEM is"),
    ],
)
def test_results_under_another_protocol_are_refused(
    board: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    other = trained(tmp_path, "other", **ONE_RUN | changes)
    with pytest.raises(UserError, match=message):
        beside_board(str(board), [other])


def test_the_page_knows_the_rows_that_are_trained_here(split: Tables, mine: Path) -> None:
    tree = contents(split)
    assert [row["label"] for row in tree["rows"] if row["own"]] == ["VREx"]
    assert not any(row["own"] for row in contents(joined([mine]))["rows"])
