"""The page's scripts and styles in a real browser."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oodbench.report.html import render, write
from oodbench.report.html.contents import contents
from oodbench.report.leaderboard import leaderboard
from oodbench.results.frames import load_frames
from tests.helpers import browser
from tests.helpers.made import Made, flat
from tests.report.html.conftest import NASTY, PERCENT

pytestmark = pytest.mark.slow


class Seen(browser.Seen):
    """The page of runs."""

    def rows(self) -> list[str]:
        """The leaderboard's algorithms from top to bottom."""
        names: list[str] = self.page.locator("#leaderboard tbody th").all_inner_texts()
        return names

    def cells(self, section: str = "leaderboard") -> list[list[str]]:
        """The texts of a section's first table."""
        return super().cells(f"#{section}")


@pytest.fixture(scope="module")
def path(made: Made) -> Path:
    file = made.results.path / "report.html"
    write([made.results.path], file)
    return file


@pytest.fixture
def seen(browser: Any, path: Path) -> Iterator[Seen]:
    page = Seen(browser, path.as_uri(), viewport={"width": 1200, "height": 900})
    yield page
    assert page.problems == []
    assert page.asked == [page.asked[0]] and page.asked[0].startswith("file:")
    page.page.context.close()


def test_it_shows_every_section_and_the_names_as_they_are(seen: Seen) -> None:
    page = seen.page
    assert page.locator("h1").inner_text() == "made"
    for section in page.locator("main > section").all():
        assert len(section.locator(".body").inner_text()) > 20, section.get_attribute("id")
    heads = page.locator("#leaderboard thead th").all_inner_texts()
    assert heads[1:3] == [f"{NASTY} (%)", f"{PERCENT} (%)"]
    assert "ValueError: <b>no</b>" in page.locator("#coverage").inner_text()
    assert page.locator("#coverage b, main script").count() == 0
    assert page.locator("#health .part").count() == 4


def test_every_chart_can_be_saved_as_a_file(seen: Seen, tmp_path: Path) -> None:
    buttons = seen.page.get_by_role("button", name="SVG", exact=True).all()
    assert len(buttons) >= 3
    for number, button in enumerate(buttons):
        with seen.page.expect_download() as saved:
            button.click()
        assert saved.value.suggested_filename.endswith(".svg")
        saved.value.save_as(tmp_path / f"{number}.svg")
        root = ElementTree.parse(tmp_path / f"{number}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and len(root) > 3
        shapes = [node for node in root.iter() if node.tag.endswith("path")]
        assert all(node.get("stroke") and not node.get("class") for node in shapes)
        assert not [node for node in root.iter() if node.tag.endswith("rect")], "no hot spots"


def test_its_texts_are_those_of_the_table(seen: Seen, made: Made) -> None:
    seen.page.select_option("#dataset", label=PERCENT)
    frame = leaderboard(load_frames(made.results)).frame
    own = frame[frame["dataset"] == PERCENT].set_index(["label", "environment"])["mean"]
    shown = {row[0]: row[1:4] for row in seen.cells()}
    assert set(shown) == {"ERM", "IRM", "VREx"}
    for label, cells in shown.items():
        for environment, text in zip(("a", "b", "mean"), cells, strict=True):
            assert text.startswith(f"{100 * own[label, environment]:.1f} ± ")
    assert {row[0]: row[-1] for row in seen.cells()} == {"ERM": "3", "IRM": "3", "VREx": "2/3"}


def test_a_header_sorts_and_incomplete_rows_stay_last(seen: Seen) -> None:
    page = seen.page
    assert seen.rows() == ["IRM", "ERM", "VREx"]  # by mean rank; VREx is incomplete
    button = page.get_by_role("button", name=re.compile(r"^mean \("))
    button.click()
    assert seen.rows() == ["IRM", "ERM", "VREx"]
    header = page.locator("#leaderboard th[aria-sort]")
    assert header.count() == 1 and header.get_attribute("aria-sort") == "descending"
    assert page.evaluate("document.activeElement.innerText") == "mean (%)"  # the focus stays
    page.keyboard.press("Enter")
    assert seen.rows() == ["ERM", "IRM", "VREx"]
    assert page.locator("#leaderboard tr.unranked th").inner_text() == "VREx"
    page.get_by_role("button", name="algorithm").click()
    assert seen.rows() == ["ERM", "IRM", "VREx"]
    assert "sorted by algorithm" in page.locator("#said").inner_text()


def test_last_columns_are_shown_as_declared_and_grey_rows_are_explained(
    browser: Any, made: Made, tmp_path: Path
) -> None:
    tree, file = contents([made.results.path]), tmp_path / "report.html"
    rule = tree["rules"][tree["rule"]]
    texts = [f"from {tree['labels'][label]}" for label in rule["board"]["label"]]
    rule["columns"].append({"name": "from", "overall": True, "text": texts})
    file.write_text(render(tree))
    seen = Seen(browser, file.as_uri())
    assert [row[-1] for row in seen.cells()] == ["from IRM", "from ERM", "from VREx"]
    seen.page.select_option("#dataset", label=PERCENT)
    last = seen.page.locator("#leaderboard thead th").all_inner_texts()[-2:]
    assert last == ["n", "from"] and seen.cells()[0][-2:] == ["3", "from IRM"]
    legend = seen.page.locator("#leaderboard p.caption").last.inner_text()
    assert "Grey rows are not ranked: incomplete ones" in legend
    assert "in italics, constant answers and ceilings, which are no methods." in legend
    assert seen.problems == []
    seen.page.context.close()


def test_the_filter_keeps_the_named_rows_everywhere(seen: Seen) -> None:
    page = seen.page
    page.fill("#filter", "irm, vr")
    assert seen.rows() == ["IRM", "VREx"]
    assert [row[0] for row in seen.cells("coverage")] == ["IRM", "VREx"]
    assert [row[0] for row in seen.cells("cost")] == ["IRM", "VREx"]
    assert page.locator("#curves h3").all_inner_texts() == ["IRM", "VREx"]
    assert page.locator("#said").inner_text() == "2 algorithms shown"
    page.fill("#filter", "none")
    assert "No algorithm matches" in page.locator("#leaderboard").inner_text()
    page.fill("#filter", "")
    assert len(seen.rows()) == 3


def test_the_rule_switches_and_the_address_keeps_it(seen: Seen, path: Path) -> None:
    page = seen.page
    before = seen.cells()
    page.select_option("#rule", "oracle")
    assert "Selection oracle" in page.locator("#rulenote").inner_text()
    assert page.locator("#leaderboard tbody tr").count() == 3
    page.select_option("#rule", "val_env")
    assert "selection val_env needs" in page.locator("#leaderboard").inner_text()
    assert page.locator("#cost table").count() == 1  # what needs no rule is still there
    page.select_option("#rule", "train_val")
    assert seen.cells() == before
    page.select_option("#rule", "oracle")
    page.select_option("#dataset", label=NASTY)
    page.goto("about:blank")
    page.goto(f"{path.as_uri()}#rule=oracle&dataset={NASTY.replace('/', '%2F')}&algorithms=ERM")
    assert "Selection oracle" in page.locator("#rulenote").inner_text()
    assert seen.rows() == ["ERM"] and page.locator("#dataset").input_value() == "0"
    seen.asked = seen.asked[:1]


def test_a_number_opens_its_runs_and_a_run_its_facts(seen: Seen, made: Made) -> None:
    page = seen.page
    page.select_option("#dataset", label=PERCENT)
    page.locator("#leaderboard tr[data-label=IRM] td button").first.click()
    dialog = page.locator("dialog")
    assert dialog.is_visible() and "IRM on a_b%, a" in page.locator("#dialogtitle").inner_text()
    ids = dialog.locator("tbody code").all_inner_texts()
    assert len(ids) == 3 and all(made.runs[i].label == "IRM" for i in ids)
    values = [float(t) for t in dialog.locator("tbody td:nth-child(2)").all_inner_texts()]
    mean = float(page.locator("#leaderboard tr[data-label=IRM] td").first.inner_text().split()[0])
    assert sum(values) / 3 == pytest.approx(mean, abs=0.1)
    dialog.locator("tbody button").first.click()
    facts = dialog.inner_text()
    spec = made.runs[ids[0]]
    assert f"runs/{ids[0]}" in facts and str(spec.hparams["lr"]) in facts
    assert "0123456789abcdef" in facts and "chosen in its trial" in facts
    page.get_by_role("button", name="Back").click()
    assert dialog.locator("tbody code").count() == 3
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_the_keyboard_reaches_everything(seen: Seen) -> None:
    page = seen.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Leaderboard"
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('td') !== null"):
            break
    page.keyboard.press("Enter")
    assert page.locator("dialog").is_visible()
    unnamed = "[...document.querySelectorAll('button, a, select, input, svg[role=img]')]"
    unnamed += ".filter(n => !(n.innerText || n.ariaLabel || n.closest('label')))"
    assert page.evaluate(f"{unnamed}.map(n => n.outerHTML)") == []


def test_a_chart_point_tells_and_opens_its_run(seen: Seen) -> None:
    page = seen.page
    page.fill("#filter", "IRM")
    spot = page.evaluate(
        """() => {
          const path = document.querySelector('#scatter path[data-chosen=IRM]');
          path.scrollIntoView({block: 'center'});
          const [, x, y] = path.getAttribute('d').match(/M([\\d.]+) ([\\d.]+)/);
          const box = path.ownerSVGElement.getBoundingClientRect();
          return [box.x + Number(x) + 3, box.y + Number(y) + 3];
        }"""
    )
    page.mouse.move(*spot)
    assert "IRM" in page.locator("#tip").inner_text()
    page.mouse.click(*spot)
    assert re.match("Run [0-9a-f]{16}", page.locator("#dialogtitle").inner_text())


def test_every_chart_is_there(seen: Seen) -> None:
    page = seen.page
    assert page.locator("#differences svg[data-forest]").count() == 2 * 3
    verdicts = [
        str(page.locator("svg[data-forest=IRM]").nth(i).get_attribute("class")) for i in range(2)
    ]
    assert "unclear" in verdicts[0] and "better" in verdicts[1]  # two datasets say little
    assert page.locator("#ranks svg[role=img]").get_attribute("aria-label") == (
        "Critical-difference diagram. IRM 1.00, ERM 2.00."
    )
    assert page.locator("#scatter path[data-chosen]").count() == 3
    assert page.locator("#curves svg").count() == 3
    assert page.locator("#curves path.line.test").count() == 3
    assert page.locator("#hparams h3").all_inner_texts() == ["lr"]
    assert page.locator("#hparams path.ring").get_attribute("d")
    text = page.locator("#cost").inner_text()
    assert "2.00 \u00d7" in text and "1.00 \u00d7" in text
    assert [row[-3] for row in seen.cells("cost")] == ["12.5 %"] * 3  # an eighth


@pytest.mark.parametrize("width", [320, 375, 800])
def test_a_narrow_page_never_scrolls_sideways(browser: Any, path: Path, width: int) -> None:
    phone = Seen(browser, path.as_uri(), viewport={"width": width, "height": 700})
    assert phone.page.evaluate("document.documentElement.scrollWidth") == width
    phone.page.locator("#leaderboard td button").first.click()
    assert phone.page.evaluate("document.documentElement.scrollWidth") == width
    assert phone.problems == []
    phone.page.context.close()


def contrast(page: Any, selector: str) -> float:
    """WCAG's contrast of an element's text with the page's ground."""

    def light(colour: str) -> float:
        parts = [int(v) / 255 for v in re.findall(r"\d+", colour)[:3]]
        r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    style = "getComputedStyle(document.querySelector({}))"
    ink = page.evaluate(style.format(json.dumps(selector)) + ".color")
    ground = page.evaluate(style.format('"body"') + ".backgroundColor")
    one, other = sorted((light(ink), light(ground)))
    return (other + 0.05) / (one + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light_are_readable(browser: Any, path: Path, scheme: str) -> None:
    page = Seen(browser, path.as_uri(), color_scheme=scheme).page
    for selector in ("h1", ".caption", ".sections a", "td.better", ".unclear", "summary"):
        assert contrast(page, selector) >= 4.5, selector
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.select_option("#theme", "light" if scheme == "dark" else "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
    assert contrast(page, "h1") >= 4.5
    page.context.close()


def test_print_leaves_the_controls_away_and_is_black_on_white(browser: Any, path: Path) -> None:
    page = Seen(browser, path.as_uri(), color_scheme="dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("#controls").is_visible() and page.locator("h1").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert contrast(page, "h1") > 15
    page.context.close()


@pytest.mark.parametrize("state", ["done", "diverged", "failed", "planned"])
def test_one_run_in_any_state_has_a_page(browser: Any, tmp_path: Path, state: str) -> None:
    sweep = Made(tmp_path)
    run = sweep.add("D", "ERM", ("a",), 0, lambda e, s, t: float("nan"), state=state, error="why")
    write([sweep.results.path], tmp_path / "one.html")
    seen = Seen(browser, (tmp_path / "one.html").as_uri())
    assert seen.problems == []
    assert "1 run: 1 algorithm on 1 dataset" in seen.page.locator("#lede").inner_text()
    assert "±" not in seen.page.locator("#leaderboard table").inner_text()
    seen.page.locator("#states button").click()
    assert seen.page.locator("dialog code").inner_text() == run
    seen.page.context.close()


def test_differences_within_the_noise_look_small(browser: Any, tmp_path: Path) -> None:
    sweep = Made(tmp_path)
    for trial in range(3):
        sweep.add("D", "ERM", ("a",), trial, flat(0.5 + trial / 1000))
    write([sweep.results.path], tmp_path / "near.html")
    seen = Seen(browser, (tmp_path / "near.html").as_uri())
    heights = seen.page.locator("#scatter path.fill[data-chosen]").get_attribute("d")
    assert heights is not None
    places = [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)", heights)]
    assert len(places) == 3 and max(places) - min(places) < 20  # pixels, of 300 at least
    seen.page.context.close()


def test_a_chart_and_its_button_are_of_one_width(seen: Seen) -> None:
    for chart in seen.page.locator(".chart").all():
        picture, button = chart.locator("svg").bounding_box(), chart.locator(".save").bounding_box()
        assert picture is not None and button is not None
        end = picture["x"] + picture["width"]
        assert button["x"] + button["width"] == pytest.approx(end, abs=1)
