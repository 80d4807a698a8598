"""A made sweep and a browser, for the tests of the page."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.made import Made, rising

NASTY = "<script>alert(1)</script>"
PERCENT = "a_b%"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


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
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Debian's chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()
