"""Numbers that others have reported: as they were printed, with their sources, ranked with nothing."""

import shutil
from pathlib import Path

import pytest

from oodbench.board.files import NUMBERS_FILE, find_reported, frozen_folder, reported_names
from oodbench.board.reported import ABOUT_FILE, read_reported, reported_sheet
from oodbench.errors import UserError
from tests.helpers.boards import invoke
from tests.helpers.made import Made


@pytest.mark.parametrize("name", reported_names())
def test_every_number_has_a_source_and_is_a_percentage(name: str) -> None:
    path = find_reported(name)
    assert path is not None
    board = read_reported(path)
    assert board.table["mean"].between(0, 100).all()
    assert all(board.about.sources[source] for source in board.table["source"])


def test_domainbeds_table_is_whole() -> None:
    table = read_reported(frozen_folder() / "domainbed-2020").table
    assert set(table["selection"]) == {"train_val", "leave_one_out", "oracle"}
    assert table["method"].nunique() == 14
    places = table[table["environment"] != "average"]
    assert len(places[["dataset", "environment"]].drop_duplicates()) == 31
    assert len(table) == 3 * 14 * (31 + 7)
    cells = table.set_index(["selection", "dataset", "method", "environment"])["mean"]
    assert cells["train_val", "PACS", "ERM", "A"] == 84.7
    assert cells["train_val", "DomainBedColoredMNIST", "ARM", "+90%"] == 82.0
    assert cells["train_val", "VLCS", "CORAL", "average"] == 78.8


def test_its_averages_are_those_of_its_environments() -> None:
    table = read_reported(frozen_folder() / "domainbed-2020").table
    mean = table["environment"] == "average"
    key = ["selection", "dataset", "method"]
    averages = table[mean].set_index(key)["mean"]
    found = table[~mean].groupby(key)["mean"].mean()
    assert ((averages - found).abs() < 0.11).all()


def test_errata_are_footnotes() -> None:
    text = invoke("show", "domainbed-2020", "--dataset", "PACS", "--rule", "oracle")
    assert "MTL *" in text and "MLDG *" in text
    assert "overwrites the environments' embeddings with noise" in text
    assert "results.tex is github.com/facebookresearch/DomainBed" in text


def test_reported_numbers_stand_below_ours_and_are_ranked_with_nothing(tmp_path: Path) -> None:
    made = Made(tmp_path / "mine")
    for trial in (0, 1):
        for label in ("ERM", "IRM"):
            made.add("PACS", label, ("a",), trial, lambda environment, split, step: 0.99)
    text = invoke("show", "domainbed-2020", tmp_path / "mine", "--rule", "train_val")
    ours, theirs = text.split("PACS: accuracy (%) as reported, selection train_val")
    assert "99.0" in ours and "99.0" not in theirs.split("Sources")[0]
    assert "VLCS" not in text
    assert "ranked with nothing" in theirs


def test_runs_of_other_datasets_have_nothing_beside_them(tmp_path: Path) -> None:
    made = Made(tmp_path / "mine")
    made.add("Mine", "ERM", ("a",), 0, lambda environment, split, step: 0.99)
    text = invoke("show", "domainbed-2020", tmp_path / "mine", code=2)
    assert "and domainbed-2020, with DomainBedColoredMNIST" in text and "share no dataset" in text


def test_only_show_takes_a_reported_board() -> None:
    text = invoke("validate", "domainbed-2020", code=2)
    assert "is a board of reported numbers: only `board show` takes it" in text
    assert "domainbed-2020" in invoke("list")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (NUMBERS_FILE, "84.7", "many", "no table of reported numbers"),
        (NUMBERS_FILE, ",84.7,", ",,", "lacks one"),
        (NUMBERS_FILE, "environment", "place", "must have the columns"),
        (ABOUT_FILE, "results.tex:", "other:", "does not say what the source"),
        (ABOUT_FILE, "title:", "name:", "Field required"),
    ],
)
def test_files_of_another_form_are_one_sentence(
    tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    board = tmp_path / "board"
    shutil.copytree(frozen_folder() / "domainbed-2020", board)
    (board / file).write_text((board / file).read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=message):
        read_reported(board)


def test_an_unknown_rule_or_dataset_is_one_sentence() -> None:
    board = read_reported(frozen_folder() / "domainbed-2020")
    with pytest.raises(UserError, match="unknown selection rule"):
        reported_sheet(board, "val_env")
    with pytest.raises(UserError, match="unknown dataset"):
        reported_sheet(board, None, {"Mine"})
