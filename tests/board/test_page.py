"""The page of a board says what its tables have."""

import re
from pathlib import Path

import pytest

from oodbench.board.page import page
from oodbench.report.leaderboard import scores, standings
from oodbench.report.numbers import number
from oodbench.report.statistics import paired_differences
from oodbench.results.beside import frozen
from oodbench.results.board import board_names, find_board, part_files
from tests.helpers.paths import ROOT


def section(text: str, title: str) -> dict[str, list[str]]:
    """The rows of the table of a section, by their first cell."""
    part = re.split(rf"^## {title}$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| ")]
    return {cells[0].strip(" *"): [cell.strip(" *") for cell in cells[1:]] for cells in rows}


@pytest.fixture(scope="module")
def text(board: Path) -> str:
    return page(str(board))


def test_results_are_those_of_the_leaderboard(board: Path, text: str) -> None:
    frames = frozen(str(board))
    for rule in ("val_env", "train_val"):
        found = section(text, f"Results by {rule}")
        frame = standings(frames, rule).frame
        own = frame[(frame["environment"] == "average") & (frame["kind"] == "method")]
        for _, row in own.iterrows():
            place = found["algorithm"].index(row["dataset"])
            cell = re.sub(r"</?u>", "", found[row["label"]][place])
            assert cell == number(row["mean"], row["stderr"], row["metric"])


def test_gains_are_paired_and_sure_ones_bold(board: Path, text: str) -> None:
    bold = re.split(r"^## Gains over ERM$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    table = scores(frozen(str(board)), "val_env")
    for place, (_, own) in enumerate(table.groupby("dataset", sort=False)):
        (d,) = paired_differences(own, "ERM")
        cell = section(text, "Gains over ERM")["IRM"][place]
        sure = not d.equal and (d.gain.low > 0 or d.gain.high < 0)
        assert (f"**{cell}**" in bold) == sure
        assert ("equal" in cell) == d.equal


def test_fewer_draws_and_left_out_datasets_have_their_ranks(board: Path, text: str) -> None:
    found = section(text, "Ranks")
    header = found["algorithm"]
    assert header[:2] == ["val_env", "train_val"] and "1 draw" in header
    ranks = {label: float(found[label][0]) for label in ("ERM", "IRM")}
    assert sum(ranks.values()) == pytest.approx(3)
    for label, cell in ((label, found[label][-1]) for label in ("ERM", "IRM")):
        low, high = map(float, cell.split(" to "))
        assert low <= ranks[label] <= high


def test_findings_name_the_rows_whose_intervals_are_beyond_zero(board: Path, text: str) -> None:
    gains = section(text, "Gains over ERM")["IRM"]
    for dataset, cell in zip(("SEM", "digits"), gains, strict=True):
        (sentence,) = [line for line in text.splitlines() if line.startswith(f"- **{dataset}**")]
        low = float(re.search(r"\[([+-][\d.]+)", cell)[1]) if "[" in cell else 0.0  # type: ignore[index]
        assert ("no row of 1 gains" in sentence) == (low <= 0)


@pytest.mark.slow
def test_committed_pages_are_what_the_boards_say() -> None:
    for name in board_names():
        if any(part_files(find_board(name))):
            assert (ROOT / "docs" / "boards" / f"{name}.md").read_text() == page(name)
