import shutil
from pathlib import Path

import pytest

from oodbench.board.shown import kept_sheet
from oodbench.report.formats import FORMATS
from oodbench.report.leaderboard import leaderboard
from oodbench.report.sheet import Sheet, sheet
from oodbench.results.beside import frozen


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Makes the sheet of a board, and counts how often."""

    def __init__(self, board: Path) -> None:
        self.board, self.times = board, 0

    def __call__(self) -> Sheet:
        self.times += 1
        return sheet(leaderboard(frozen(str(self.board))))


def test_a_kept_sheet_prints_as_a_new_one(board: Path, cache: Path) -> None:
    make = Maker(board)
    new, kept = (kept_sheet(board, ("val_env",), make) for _ in range(2))
    assert make.times == 1
    for name, format_ in FORMATS.items():
        assert format_(new) == format_(kept), name


def test_other_arguments_have_sheets_of_their_own(board: Path, cache: Path) -> None:
    make = Maker(board)
    for key in (("val_env",), ("train_val",), ("val_env",)):
        kept_sheet(board, key, make)
    assert make.times == 2


def test_a_board_with_other_files_is_read_again(board: Path, cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(board, tmp_path / "tiny.v1"))
    make = Maker(copy)
    before = kept_sheet(copy, (), make)
    next((copy / "parts").glob("*/IRM.parquet")).unlink()
    after = kept_sheet(copy, (), make)
    assert make.times == 2
    assert FORMATS["csv"](before) != FORMATS["csv"](after)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stamp": null}'])
def test_a_torn_file_is_made_again(board: Path, cache: Path, text: str) -> None:
    make = Maker(board)
    kept_sheet(board, (), make)
    (file,) = (cache / "oodbench").iterdir()
    whole = file.read_text()
    file.write_text(text)
    kept_sheet(board, (), make)
    assert make.times == 2
    assert file.read_text() == whole


def test_where_nothing_can_be_kept_it_is_made_each_time(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    make = Maker(board)
    kept_sheet(board, (), make)
    kept_sheet(board, (), make)
    assert make.times == 2
