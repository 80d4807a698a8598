"""The summary of a board: `show` prints it and reads no part, or says why not."""

import sys
from pathlib import Path
from subprocess import run

import pytest

from oodbench.report.cli import ALL
from oodbench.report.comparison import board_sheet
from oodbench.report.sources import beside_board
from oodbench.report.summary import write_summary
from oodbench.report.tables import FORMATS, to_terminal
from oodbench.report.tables.stored import read_summary
from oodbench.results.boards import board_names, find_board, part_files
from oodbench.results.parts import read_parts
from tests.helpers.boards import invoke, remove_part

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("format_", FORMATS)
def test_a_summary_prints_what_the_parts_give(board: Path, format_: str) -> None:
    shown = invoke("table", board, "--format", format_, "--notes")
    tables = board_sheet(beside_board(str(board), []))
    whole = to_terminal(tables, whole=True) if format_ == "terminal" else FORMATS[format_](tables)
    assert shown == whole


def text_of_parts(board: Path) -> str:
    return to_terminal(board_sheet(beside_board(str(board), []), short=True), more=ALL)


def test_a_board_alone_is_shown_without_a_look_into_its_parts() -> None:
    """`report table` imports none of the libraries that read a part, as they take a second."""
    code = (
        "import sys; from oodbench.report.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "sys.exit(f'{slow}' if (slow := {'pandas', 'pyarrow', 'scipy', 'torch'} & {*sys.modules}) else 0)"
    )
    shown = run([sys.executable, "-c", code, "table", "small.v3"], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "ERM" in shown.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("damage", ["part removed", "protocol", "number", "torn", "empty", "older"])
def test_a_stale_or_damaged_summary_is_named_and_not_used(copy: Path, damage: str) -> None:
    file = copy / "summary.json"
    text = file.read_text()
    if damage == "part removed":
        remove_part(copy, "SEM", "IRM")
    elif damage == "protocol":
        (copy / "protocol.yaml").write_text((copy / "protocol.yaml").read_text() + "\n")
    elif damage == "older":
        file.write_text(text.replace('"remarks"', '"counts"'))
    else:
        damaged = {"number": text.replace('"n": [4', '"n": [5'), "torn": text[:-9], "empty": ""}
        assert damaged[damage] != text
        file.write_text(damaged[damage])
    shown = invoke("table", copy)
    assert "summary.json is damaged or of other parts" in shown
    assert text_of_parts(copy) in shown
    assert "summary.json" in invoke("validate", copy, code=1)
    write_summary(copy)
    assert invoke("table", copy) == text_of_parts(copy)


def test_a_board_without_a_summary_is_read_from_its_parts(copy: Path) -> None:
    (copy / "summary.json").unlink()
    assert invoke("table", copy) == text_of_parts(copy)
    assert "is as it must be" in invoke("validate", copy)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [n for n in board_names() if any(part_files(find_board(n)))])
def test_the_summary_of_a_frozen_board_is_of_its_parts(name: str) -> None:
    stored = read_summary(find_board(name))
    assert stored is not None
    labels = {part.label for part in read_parts(find_board(name))}
    assert labels < set(stored.frame["label"])
    frames = beside_board(str(find_board(name)), [])
    assert stored.blocks == board_sheet(frames).blocks
