"""The page in a real browser: a made sweep's, and a made board's."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oodbench.report.html import contents, render, write
from oodbench.results.read import joined
from oodbench.results.tables import Tables
from tests.helpers.browser import Seen
from tests.helpers.results.made import Made, flat
from tests.report.html.conftest import NASTY, PERCENT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(made: Made) -> Path:
    file = made.results.path / "report.html"
    write(joined([made.results.path]), file)
    return file


@pytest.fixture(scope="module")
def board(kinds: tuple[Tables, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "board.html"
    write(kinds[0], file)
    return file


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Seen]:
    seen = Seen(browser, "about:blank", viewport={"width": 1400, "height": 900})
    yield seen
    seen.page.context.close()


def opened(tab: Seen, path: Path) -> Iterator[Seen]:
    """A page, which says nothing to the console and asks for nothing."""
    tab.page.goto("about:blank")  # else an address that only adds a fragment keeps the page
    tab.asked.clear()
    tab.page.goto(path.as_uri())
    tab.page.evaluate("document.getElementById('choose').open = true")
    yield tab
    assert tab.problems == []
    assert set(tab.asked) == {tab.asked[0]} and tab.asked[0].startswith("file:")


@pytest.fixture
def seen(tab: Seen, path: Path) -> Iterator[Seen]:
    yield from opened(tab, path)


@pytest.fixture
def shown(tab: Seen, board: Path) -> Iterator[Seen]:
    yield from opened(tab, board)


def rows(seen: Seen) -> list[str]:
    names: list[str] = seen.page.locator("#table tbody th").all_inner_texts()
    return names


@pytest.mark.parametrize("fixture", ["shown", "seen"])
def test_the_first_screen_has_a_sentence_a_picture_and_a_table(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    page = request.getfixturevalue(fixture).page
    page.locator("#choose summary").click()
    assert not page.locator("#controls").is_visible()
    assert len(re.findall(r"\.(?: |$)", page.locator("#finding").inner_text())) == 1
    for part in ("#picture", "#table .scroll"):
        box = page.locator(part).bounding_box()
        assert box is not None and box["y"] + box["height"] < 900
    if fixture == "shown":
        told = page.locator("#table").inner_text()
        assert "Selected by val_env: against the oracle rows lose" in told
        return
    assert page.locator("h1").inner_text().startswith("made")
    assert "Which of 3 rows does best" in page.locator("#asked").inner_text()
    assert "two datasets give no interval" in page.locator("#finding").inner_text()
    assert page.locator("#picture .dot").count() == 3
    assert page.locator("#runs").inner_text().count("64 done, 4 diverged") == 1
    # names are text and never markup
    page.locator("#choose summary").click()
    names = page.locator("#view").inner_text()
    assert NASTY in names and PERCENT in names
    page.locator("#runs summary").click()
    assert "ValueError: <b>no</b>" in page.locator("#runs").inner_text()
    assert page.locator("#runs b, main script").count() == 0


def test_cells_say_value_or_gain(seen: Seen, path: Path, made: Made) -> None:
    tree = contents(joined([made.results.path]))
    seen.page.select_option("#view", PERCENT)
    for place, name in ((0, "value"), (2, "gain")):
        seen.page.select_option("#cells", label=name)
        cell = seen.page.locator("#table tr[data-label=IRM] td.cell").inner_text()
        assert cell == tree["rules"]["train_val"]["cells"][1][1][place]
    heads = seen.page.locator("#table thead th").all_inner_texts()
    wanted = ["algorithm", "gain", "trials", "accuracy (%)", "a", "b"]
    assert [text.rstrip(" \u2191\u2193") for text in heads] == wanted


def test_a_header_sorts_and_keeps_the_focus(seen: Seen) -> None:
    page = seen.page
    assert rows(seen) == ["IRM", "ERM", "VREx"]  # by mean rank; VREx is incomplete
    page.get_by_role("button", name=f"sort by {PERCENT}").click()
    assert rows(seen) == ["VREx", "IRM", "ERM"]
    header = page.locator("#table th[aria-sort]")
    assert header.count() == 1 and header.get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")
    assert rows(seen) == ["ERM", "IRM", "VREx"]
    assert page.locator("#table tr.apart th").inner_text() == "VREx"


def test_named_rows_are_shown_everywhere_and_the_address_keeps_it(seen: Seen, path: Path) -> None:
    page = seen.page
    page.fill("#filter", "irm, vr")
    assert rows(seen) == ["IRM", "VREx"] and page.locator("#picture .dot").count() == 2
    page.select_option("#rule", "oracle")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert rows(seen) == ["IRM", "VREx"]
    assert "Selected by oracle" in page.locator("#asked").inner_text()
    seen.asked = seen.asked[:1]


def test_a_number_opens_its_runs(seen: Seen) -> None:
    page = seen.page
    page.locator("#table tr[data-label=IRM] td.cell button").first.click()
    dialog = page.locator("dialog")
    assert page.locator("#dialogtitle").inner_text() == f"IRM on {NASTY}"
    values = [float(row[4]) for row in seen.cells("#dialogbody")]
    mean = page.locator("#dialogbody dd").first.inner_text()
    assert len(values) == 6 and sum(values) / 6 == pytest.approx(float(mean.split()[0]), abs=0.1)
    assert "oodbench.report why" in dialog.locator("code").inner_text()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    page.locator("#table tbody th button").first.click()
    assert [row[0] for row in seen.cells("#dialogbody")] == [NASTY, PERCENT]


def test_the_keyboard_reaches_everything(seen: Seen) -> None:
    page = seen.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "table"
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('td') !== null"):
            break
    page.keyboard.press("Enter")
    assert page.locator("dialog").is_visible()
    unnamed = "[...document.querySelectorAll('button, a, select, input, svg[role=img]')]"
    unnamed += ".filter(n => !(n.textContent || n.ariaLabel || n.closest('label')))"
    assert page.evaluate(f"{unnamed}.map(n => n.outerHTML)") == []


@pytest.mark.parametrize("width", [320, 400, 800])
def test_a_narrow_page_never_scrolls_sideways_and_has_its_numbers(shown: Seen, width: int) -> None:
    page = shown.page
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": 700})
    page.reload()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cells = page.locator("#table td.cell").all_inner_texts()
    assert len(cells) > 12 and all(re.fullmatch(r"[-\u221e\d.]+|\u00b7", text) for text in cells)
    page.locator("#table td.cell button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.set_viewport_size(before)


@pytest.mark.parametrize(
    ("state", "value", "shown"),
    [
        ("done", 0.5, ["50.0"]),
        ("diverged", math.nan, ["nan"]),
        *((state, 0.5, ["·"]) for state in ("planned", "failed", "running")),
    ],
)
def test_one_run_in_any_state_has_a_page(
    tab: Seen, tmp_path: Path, state: str, value: float, shown: list[str]
) -> None:
    sweep = Made(tmp_path)
    sweep.add("D", "ERM", ("a",), 0, flat(value), state=state, error="why")
    (tmp_path / "one.html").write_text(render(contents(joined([sweep.results.path]))))
    tab.page.goto((tmp_path / "one.html").as_uri())
    assert f"1 {state}." in tab.page.locator("#runs").inner_text()
    assert [x for x in tab.page.locator("#table td.cell").all_inner_texts() if x] == shown
    assert tab.problems == []
