import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oodbench.board.beside import frozen
from oodbench.board.shown import kept_text
from oodbench.report.formats import FORMATS
from oodbench.report.leaderboard import leaderboard
from oodbench.report.sheet import sheet


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Makes a text of a board, and counts how often."""

    def __init__(self, board: Path, format_: str = "csv") -> None:
        self.board, self.format, self.times = board, format_, 0

    def __call__(self) -> str:
        self.times += 1
        return FORMATS[self.format](sheet(leaderboard(frozen(str(self.board)))))


@pytest.mark.parametrize("format_", FORMATS)
def test_a_kept_text_is_the_new_one(board: Path, cache: Path, format_: str) -> None:
    make = Maker(board, format_)
    new, kept = (kept_text(board, ("val_env", format_), make) for _ in range(2))
    assert make.times == 1
    assert kept == new == make()


def test_other_terminals_have_texts_of_their_own(
    board: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Maker(board, "terminal")
    texts: dict[str, str] = {}
    for columns in ("80", "40", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        assert kept_text(board, (), make) == texts.setdefault(
            columns, FORMATS["terminal"](sheet(leaderboard(frozen(str(board)))))
        )
    assert make.times == 2
    assert texts["80"] != texts["40"]
    for variable, value in (("FORCE_COLOR", "1"), ("NO_COLOR", "1")):
        monkeypatch.setenv(variable, value)
        kept_text(board, (), make)
    assert make.times == 4


def test_other_arguments_have_sheets_of_their_own(board: Path, cache: Path) -> None:
    make = Maker(board)
    for key in (("val_env",), ("train_val",), ("val_env",)):
        kept_text(board, key, make)
    assert make.times == 2


def test_a_board_with_other_files_is_read_again(board: Path, cache: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(board, tmp_path / "tiny.v1"))
    make = Maker(copy)
    before = kept_text(copy, (), make)
    next((copy / "parts").glob("*/IRM.parquet")).unlink()
    after = kept_text(copy, (), make)
    assert make.times == 2
    assert before != after


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stamp": null}'])
def test_a_torn_file_is_made_again(board: Path, cache: Path, text: str) -> None:
    make = Maker(board)
    kept_text(board, (), make)
    (file,) = (cache / "oodbench").iterdir()
    whole = file.read_text()
    file.write_text(text)
    kept_text(board, (), make)
    assert make.times == 2
    assert file.read_text() == whole


def test_where_nothing_can_be_kept_it_is_made_each_time(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    make = Maker(board)
    kept_text(board, (), make)
    kept_text(board, (), make)
    assert make.times == 2


def test_a_kept_text_is_shown_without_pandas_and_torch(board: Path, cache: Path) -> None:
    code = (
        "import sys; from oodbench.board.cli import app\n"
        f"app(['show', {str(board)!r}], standalone_mode=False)\n"
        "print(*{'pandas', 'torch'} & set(sys.modules), file=sys.stderr)"
    )
    new, kept = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert new.stderr.strip() == "pandas"
    assert kept.stderr.strip() == ""
    assert kept.stdout == new.stdout != ""
