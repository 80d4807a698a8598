"""A made sweep and a browser, for the tests of the page."""

import pytest

from tests.helpers.browser import browser as browser
from tests.helpers.made import Made, rising

NASTY = "<script>alert(1)</script>"
PERCENT = "a_b%"


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
