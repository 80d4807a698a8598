"""A made sweep, a made board and a browser, for the tests of the page."""

import math
from pathlib import Path

import pandas as pd
import pytest

from oodbench.results.read import read_board
from oodbench.results.tables import Tables
from tests.helpers.browser import browser as browser
from tests.helpers.results.made import Made, rising
from tests.helpers.results.made_boards import Means, made_board

NASTY = "<script>alert(1)</script>"
PERCENT = "a_b%@data@"
KINDS: Means = {
    "alpha": {"ERM": 0.5, "A": 0.8, "B": 0.45, "C": 0.5, "D": math.nan, "T": 0.9, "ceiling": 0.95},
    "beta, b": {"ERM": 2.0, "A": 1.0, "B": 9.0, "C": 2.1, "D": 1.6, "T": 0.5, "ceiling": 0.4},
    "gamma": {"ERM": 0.4, "A": 0.5, "B": 0.35, "D": 0.5, "T": 0.45, "ceiling": 0.8},
    "delta": {"ERM": 0.6, "A": 0.61, "B": 0.5, "C": 0.5, "T": 0.6, "ceiling": None},
}
"""`C` has no run of gamma, `D` none of delta, whose ceiling has the runs of ERM; `D` diverged on alpha.
`beta, b` is an mse."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two datasets, two draws, three trials; VREx lacks a trial, one of its runs diverged."""
    sweep = Made(tmp_path_factory.mktemp("made"))
    for d, dataset in enumerate((NASTY, PERCENT)):
        for i, label in enumerate(("ERM", "IRM", "VREx")):
            for test in ("a", "b"):
                for trial in range(3):
                    for draw in range(2):
                        level = 0.5 + 0.1 * i + 0.01 * trial + 0.05 * draw - 0.02 * d * i
                        state, error = "done", ""
                        if label == "VREx" and trial == 2 and draw == 0:
                            state, error = (
                                ("failed", "ValueError: <b>no</b>") if d else ("lost", "")
                            )
                        if label == "VREx" and trial == 1 and draw == 1:
                            state = "diverged"
                        sweep.add(
                            dataset, label, (test,), trial, rising(level, test), draw=draw,
                            state=state, error=error, seconds=0.1 * (1 + i), memory=100.0 + i,
                        )  # fmt: skip
    return sweep


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tables, pd.DataFrame]:
    """A board with every kind of row, and its runs as a plain table."""
    folder: Path = tmp_path_factory.mktemp("board") / "kinds.v1"
    runs = made_board(
        *(folder, KINDS, 3, 5),
        rules=dict.fromkeys(KINDS, ("val_env", "train_val", "oracle")),
        lower=("beta, b",),
        halves={"constructed": ["alpha", "beta, b", "delta"], "natural": ["gamma"]},
        constant={"alpha": 0.4},
        ceilings=("ceiling",),
        transductives=("T",),
        own_trials={"gamma": 8},
    )
    return read_board(folder), runs
