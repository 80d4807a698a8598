"""A made board with every kind of row, and the browser."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oodbench.board.page.contents import Contents, contents
from oodbench.board.page.html import html_page
from tests.helpers.browser import Seen
from tests.helpers.browser import browser as browser
from tests.helpers.made_boards import Means, made_board

KINDS: Means = {
    "alpha": {"ERM": 0.5, "A": 0.8, "B": 0.45, "C": 0.5, "D": math.nan, "T": 0.9, "ceiling": 0.95},
    "beta, b": {"ERM": 2.0, "A": 1.0, "B": 9.0, "C": 2.1, "D": 1.6, "T": 0.5, "ceiling": 0.4},
    "gamma": {"ERM": 0.4, "A": 0.5, "B": 0.35, "D": 0.5, "T": 0.45, "ceiling": 0.8},
    "delta": {"ERM": 0.6, "A": 0.61, "B": 0.5, "C": 0.5, "T": 0.6, "ceiling": None},
}
"""`C` has no run of gamma, `D` none of delta, whose ceiling has the runs of ERM; `D` diverged on alpha.
`beta, b` is an mse."""
NAMES = {"alpha": "ColoredDigits", "beta, b": "LinearSEM", "gamma": "Flights", "delta": "Spirals"}
DRAWS, TRIALS = 3, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("board") / "kinds.v1"


@pytest.fixture(scope="module")
def kinds(folder: Path) -> pd.DataFrame:
    """The runs of the board in `folder`."""
    return made_board(
        *(folder, KINDS, DRAWS, TRIALS),
        rules=dict.fromkeys(KINDS, ("val_env", "train_val", "oracle")),
        lower=("beta, b",),
        names=NAMES,
        constant={"alpha": 0.4},
        ceilings=("ceiling",),
        transductives=("T",),
        alone=("C",),
        own_trials={"gamma": 8},
    )


@pytest.fixture(scope="module")
def board(folder: Path, kinds: pd.DataFrame) -> Contents:
    return contents(str(folder))


@pytest.fixture(scope="module")
def address(board: Contents, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "board.html"
    file.write_text(html_page(board))
    return file.as_uri()


@pytest.fixture
def seen(browser: Any, address: str) -> Iterator[Seen]:
    """The board's page, which says nothing to the console and asks for nothing."""
    page = Seen(browser, address, viewport={"width": 1400, "height": 900})
    yield page
    assert page.problems == []
    assert page.asked == [page.asked[0]] and page.asked[0].startswith("file:")
    page.page.context.close()
