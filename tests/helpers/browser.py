"""Pages in a real browser."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


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


class Seen:
    """A page, all that its console said and all that it asked for."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.page = browser.new_context(reduced_motion="reduce", **options).new_page()
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def cells(self, selector: str) -> list[list[str]]:
        """The texts of the first table within an element."""
        rows = self.page.locator(f"{selector} table").first.locator("tbody tr").all()
        return [row.locator("th, td").all_inner_texts() for row in rows]
