"""The quickstart on a board, and the tables at the end of `board run`."""

from pathlib import Path

import pytest

from oodbench.board.protocol import protocol_of, restricted
from oodbench.board.rerun import next_lines, quickstart_sheet
from oodbench.report.sources import beside_board
from oodbench.report.tables import FORMATS
from oodbench.results.boards import find_board
from oodbench.results.read import read_board
from oodbench.sweep.plan import make_plan
from tests.helpers.paths import ROOT
from tests.helpers.results.boards import trained

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dataset", ["colored digits", "SEM, FOU", "city weather"])
def test_the_protocol_of_the_board_plans_the_runs_that_are_frozen(dataset: str) -> None:
    """Whatever the methods' ranges are now, in each family of data: those of then are written in it."""
    board, rows = find_board("small.v3"), ["IRM", "VREx", "MMREx", "IB_ERM", "JTT"]
    plan = make_plan(restricted(protocol_of(board), rows, trials=1, datasets=[dataset]))
    runs = read_board(board).runs
    of_rows = runs["dataset_label"].eq(dataset) & runs["label"].isin(rows) & runs["trial"].eq(0)
    assert set(plan.runs) == set(runs.loc[of_rows, "id"])


@pytest.mark.nightly
def test_what_is_trained_here_stands_among_the_best_of_the_board(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all runs are the board's, three notes say all."""
    monkeypatch.setattr("oodbench.report.comparison.BEST", 2)
    entry = protocol_of(board).datasets[0]
    assert isinstance(entry, dict) and entry["name"] == "LinearSEM"
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
