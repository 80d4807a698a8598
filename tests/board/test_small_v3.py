"""small.v3: one range on all datasets, for all rows; runs have the same bits anywhere; the quickstart."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oodbench.board.protocol import protocol_of, restricted
from oodbench.board.rerun import next_lines, quickstart_sheet
from oodbench.notes import Note
from oodbench.report.comparison import table
from oodbench.report.sources import beside_board
from oodbench.report.tables import FORMATS, leaderboard
from oodbench.results.boards import find_board
from oodbench.results.predictions import predictions_file
from oodbench.results.read import read_board
from oodbench.sweep.plan import make_plan
from tests.helpers.commands import python
from tests.helpers.paths import ROOT
from tests.helpers.results.boards import trained

BOARD = find_board("small.v3")
FEATURES = "letters, features"
TWO = ("SEM, FOU", "desert rodents")


@pytest.mark.slow
def test_a_draw_is_the_same_on_all_datasets_and_for_all_rows_but_references() -> None:
    each_kind = ["SEM, FOU", "colored digits", "city weather"]
    sweep = restricted(protocol_of(BOARD), ["all"], 1, 3, each_kind)
    runs = make_plan(sweep, to_train=False).runs.values()
    trained = [r for r in runs if not r.reference]
    assert len({(r.draw, r.hparams["lr"], r.hparams["weight_decay"]) for r in trained}) == 3
    assert {r.hparams["batch_size"] for r in trained} == {32}
    assert {r.label for r in runs if r.ceiling and r.reference} == {"Forest ceiling"}


@pytest.mark.nightly
def test_forty_runs_have_the_bits_that_they_were_frozen_with(tmp_path: Path) -> None:
    made = python(tmp_path, "-m", "oodbench.board", "rerun", "small.v3", "--sample", "40")
    assert "again: 40 equal bit for bit," in made.stdout, made.stdout + made.stderr


def test_chosen_rows_keep_their_places_among_all() -> None:
    whole, few = (table("small.v3", rows=rows) for rows in ((), ("ANDMask,IRM",)))
    places = []
    for sheet in (whole, few):
        (block,) = (block for block in sheet.blocks if "place" in block.header)
        place = block.header.index("place")
        places.append({row[0]: row[place] for row in block.rows})
    assert places[1].keys() >= {"ANDMask", "IRM"} and places[1].items() <= places[0].items()
    assert len(places[1]) < len(places[0])


@pytest.mark.slow
def test_the_constant_answer_is_compared_with_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[set[str]] = []

    def compare(frame: pd.DataFrame) -> list[Note]:
        compared.append({*frame["label"]})
        return []

    monkeypatch.setattr(leaderboard, "beside_constant", compare)
    table("small.v3", rows=("ANDMask,IRM",))
    assert compared and all(len(labels) > 20 for labels in compared)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["colored digits", "SEM, FOU", "city weather"])
def test_the_protocol_of_the_board_plans_the_runs_that_are_frozen(dataset: str) -> None:
    """Whatever the methods' ranges are now, in each family of data: those of then are written in it."""
    rows = ["IRM", "VREx", "MMREx", "IB_ERM", "JTT"]
    plan = make_plan(restricted(protocol_of(BOARD), rows, trials=1, datasets=[dataset]))
    runs = read_board(BOARD).runs
    of_rows = runs["dataset_label"].eq(dataset) & runs["label"].isin(rows) & runs["trial"].eq(0)
    assert set(plan.runs) == set(runs.loc[of_rows, "id"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "metric", "off"), [(TWO[0], "mse", 2e-3), (TWO[1], "accuracy", 6e-3)]
)
def test_the_predictions_give_the_frozen_values(dataset: str, metric: str, off: float) -> None:
    """Half precision makes ties of classes: accuracies differ by up to 0.005."""
    p = pd.read_parquet(predictions_file(BOARD, dataset))
    outputs = p.filter(like="output_").to_numpy()
    if metric == "mse":
        value = (outputs[:, 0] - p["target_0"]) ** 2
    else:
        value = (outputs.argmax(1) == p["target"]).astype(float)
    ours = value.groupby([p["id"], p["step"], p["environment"]]).mean()
    records = pd.read_parquet(BOARD / "records.parquet")
    records = records.query("metric == @metric and split == 'in'")
    theirs = records.set_index(["id", "step", "environment"])["value"]
    assert len(ours) > 500 and ours.index.isin(theirs.index).all()
    np.testing.assert_allclose(ours, theirs[ours.index], rtol=off, atol=off)


@pytest.mark.nightly
def test_what_is_trained_here_stands_among_the_best_of_the_board(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all runs are the board's, three notes say all."""
    monkeypatch.setattr("oodbench.report.comparison.BEST", 2)
    entry = protocol_of(board).datasets[0]
    assert entry.name == "LinearSEM"
    equal = trained(tmp_path, "equal", algorithms=["IRM"], datasets=[entry])
    frames = beside_board(str(board), [equal])
    shown = quickstart_sheet(frames)
    assert "All 16 runs here are equal to the board's, bit for bit." in FORMATS["markdown"](shown)
    assert (len(shown.notes), shown.remarks) == (3, ())
    errors = {row[0]: float(row[1].split(" ")[0]) for row in shown.blocks[-1].rows if row[0]}
    best = min((label for label in errors if label in ("ERM", "IRM")), key=errors.__getitem__)
    found, page, following = next_lines(frames, tmp_path / "report.html")
    assert f"by val_env {best} has" in found and "the constant answer" in found
    assert page.endswith("report.html")
    assert (ROOT / following.rpartition(" ")[2]).is_file()
    other = trained(tmp_path, "other", algorithms=["IRM", "VREx"], datasets=[entry])
    text = FORMATS["markdown"](quickstart_sheet(beside_board(str(board), [other])))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line[:1] == "|"}
    assert "board, here" in rows["IRM"] and "here" in rows["VREx"] and "*constant*" in rows
    assert "IRM on SEM: 16 of 16 runs here are equal to the board's." in text
    assert "bit for bit" not in text and "Trained by" in text
