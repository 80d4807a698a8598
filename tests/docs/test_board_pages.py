"""The pages of a board that are checked in are those of its frozen runs."""

import pytest

from oodbench.report.html import render
from oodbench.report.html.contents import contents
from oodbench.report.sources import frames_of
from tests.helpers.boards import invoke
from tests.helpers.paths import ROOT

BOARDS = ROOT / "docs/boards"


@pytest.mark.nightly  # half a minute
def test_the_page_is_of_the_frozen_runs() -> None:
    page = render(contents(frames_of(["small.v3"])))
    assert page == (BOARDS / "small.v3.html").read_text()
    assert len(page.encode()) < 1_500_000


def test_the_tables_are_what_the_command_prints() -> None:
    text = (BOARDS / "small.v3.md").read_text()
    assert text.endswith(invoke("table", "small.v3", "--format", "markdown"))
