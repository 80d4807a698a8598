"""The pages of a board that are checked in are those of its frozen runs."""

import re

import pytest

from oodbench.diagnose.admission import checks, figures_of_results
from oodbench.report.html import contents, render
from oodbench.report.sources import frames_of
from tests.helpers.paths import ROOT
from tests.helpers.results.boards import invoke

BOARDS = ROOT / "docs/boards"


@pytest.mark.nightly  # half a minute
def test_the_page_is_of_the_frozen_runs() -> None:
    page = render(contents(frames_of(["small.v3"])))
    assert page == (BOARDS / "small.v3.html").read_text()
    assert len(page.encode()) < 1_500_000


def test_the_tables_are_what_the_command_prints() -> None:
    text = (BOARDS / "small.v3.md").read_text()
    assert text.endswith(invoke("table", "small.v3", "--format", "markdown"))


@pytest.mark.nightly
def test_the_figures_of_admission_are_those_of_the_frozen_runs() -> None:
    frames, text = frames_of(["small.v3"]), (BOARDS / "protocol.md").read_text()
    rows = re.findall(r"^\| (.*) \|$", text.partition("## What is frozen")[2], re.M)[2:]
    assert len(rows) == frames.runs["dataset_label"].nunique()
    for dataset, *cells in (row.split(" | ") for row in rows):
        found = checks(figures_of_results(frames, dataset))
        assert cells[3:] == [c.found if c.holds else f"**{c.found}**" for c in found]
