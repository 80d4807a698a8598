"""The HTML page of a board in a real browser: what it computes is what Python computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from oodbench.board.page import agreement
from oodbench.board.page.contents import Contents, contents
from oodbench.board.page.html import ASSETS, html_page
from oodbench.board.page.markdown import markdown_page
from oodbench.report.gap_tables import BASELINE, Gaps, gaps_of
from oodbench.report.statistics import estimate
from oodbench.results.boards import dataset_file
from oodbench.results.frames import only
from tests.board.page.conftest import DRAWS, KINDS, TRIALS
from tests.helpers.boards import remove_part
from tests.helpers.browser import Seen
from tests.helpers.made_boards import made_board

pytestmark = pytest.mark.slow
NOISE = 0.05
"""How far two bootstraps of 2,000 resamples may be apart."""
NONE, MINUS, RHO = "\u2013", "\u2212", "\u03c1"


def gaps(
    board: Contents, rule: str, datasets: Sequence[str] = (), rows: Sequence[str] = ()
) -> Gaps:
    frames = only(board.frames, datasets, rows, BASELINE)
    made = gaps_of(frames, rule)
    assert made is not None
    return made


def minus(text: str) -> float:
    return float(text.replace(MINUS, "-"))


def shown(seen: Seen) -> dict[str, dict[str, str]]:
    """The cells of all heat maps by row and column."""
    found: dict[str, dict[str, str]] = {}
    for table in seen.page.locator("table.heat").all():
        header = [
            text.replace("\n", " ") for text in table.locator("thead th button").all_inner_texts()
        ]
        for row in table.locator("tbody tr").all():
            texts = row.locator("th, td").all_inner_texts()
            found[texts[0]] = dict(zip(header, texts, strict=True))
    return found


def choose(seen: Seen, rule: str, datasets: Sequence[str]) -> None:
    seen.page.select_option("#rule", rule)
    for dataset in KINDS:
        seen.page.locator(f'input[data-dataset="{dataset}"]').set_checked(dataset in datasets)


def check(seen: Seen, expected: Gaps, datasets: Sequence[str]) -> None:
    """Compare every number of the heat maps with those of Python."""
    table = shown(seen)
    clear = [d for d in datasets if d not in expected.unclear]
    for label in map(str, expected.shares):
        row = table[label]
        for dataset in clear:
            cell, value = row[dataset].rstrip("▴▾").strip(), expected.shares[label][dataset]
            if np.isfinite(value):
                assert abs(minus(cell) - value) < 0.0051
            else:
                assert cell == ("·" if np.isnan(value) else f"{MINUS}∞")
        mean = row[next(name for name in row if name.startswith("mean share"))]
        if label not in expected.means:
            assert mean == NONE and row["place"] == NONE
            continue
        assert abs(minus(mean.split(" [")[0]) - expected.means[label]) < 0.0051
        place, (low, high) = expected.places[label], expected.resampled.interval(label)
        if label != BASELINE:
            ends = [minus(text) for text in mean.split(" [")[1].rstrip("]").split(", ")]
            assert ends == pytest.approx([low, high], abs=NOISE)
        assert row["place"].startswith(f"{place.place} [")
        assert float(row["P(first)"]) == pytest.approx(place.first, abs=NOISE)
        signs = [sign for (_, other), sign in expected.signs.items() if other == label]
        counts = f"{signs.count(1)} / {signs.count(-1)}" if label != BASELINE else NONE
        assert row["gains / losses"] == counts


def test_the_page_begins_with_what_python_computes(seen: Seen, board: Contents) -> None:
    check(seen, board.gaps["val_env"], list(KINDS))
    text = seen.page.locator("#summary").inner_text()
    assert "The head-room of delta is not clear" in text and "The first is A, which closes" in text


def test_another_rule_and_fewer_datasets_are_computed_again(seen: Seen, board: Contents) -> None:
    datasets = ["alpha", "beta, b"]
    choose(seen, "train_val", datasets)
    check(seen, gaps(board, "train_val", datasets), datasets)
    assert set(shown(seen)["A"]) > set(datasets) and "gamma" not in shown(seen)["A"]
    seen.page.get_by_role("button", name="natural", exact=True).click()
    check(seen, gaps(board, "train_val", ["gamma"]), ["gamma"])


def test_places_are_those_among_the_rows_that_are_shown(seen: Seen, board: Contents) -> None:
    seen.page.fill("#filter", "B, T")
    check(seen, gaps(board, "val_env", rows=["B", "T"]), list(KINDS))
    assert set(shown(seen)) == {"ERM", "B", "T", "constant"}
    assert "place among 2" in seen.page.locator("#order").text_content()


def test_transductive_rows_and_the_constant_answer_have_no_place(
    seen: Seen, board: Contents
) -> None:
    *_, apart = seen.page.locator("table.heat").all()
    assert apart.locator("tbody th").all_inner_texts() == ["T", "constant"]
    table = shown(seen)
    assert [table[label]["place"] for label in ("T", "constant")] == [NONE, NONE]
    trials, rooms = board.gaps["val_env"].apart, board.gaps["val_env"].rooms
    gain = trials.loc["alpha"]["T"].mean() - trials.loc["alpha"]["ERM"].mean()
    expected = gain / rooms["mean"]["alpha"]
    assert minus(table["T"]["alpha"]) == pytest.approx(expected, abs=0.0051)


def test_a_number_opens_its_runs(seen: Seen, kinds: pd.DataFrame) -> None:
    own = kinds.query("dataset == 'alpha' and label == 'A'")
    best = own.loc[own.groupby("trial")["val_env"].idxmax()]
    seen.page.locator("table.heat tr[data-label=A] td button").nth(1).click()
    dialog = seen.page.locator("dialog")
    dialog.locator("tbody tr").first.wait_for()
    assert seen.page.locator("#dialogtitle").inner_text() == "A on alpha"
    rows = seen.cells("#dialogbody")
    for row, run in zip(rows, best.itertuples(), strict=True):
        assert row[0] == str(run.trial) and row[1].split(" ")[0] == str(run.draw)
        assert row[4] == "7"
        numbers = [float(text) for text in row[2:4]]
        expected = [100 * getattr(run, name) for name in ("t", "val_env")]
        assert numbers == pytest.approx(expected, abs=0.051)
    gain = best.set_index("trial")["t"] - chosen_values(kinds, "alpha", BASELINE)
    low, high = (f"+{100 * v:.1f}" for v in (estimate(gain).low, estimate(gain).high))
    assert f"[{low}, {high}] points" in dialog.inner_text()
    dialog.get_by_text(f"All {DRAWS * TRIALS} runs").click()
    dialog.locator("details tr.picked").first.wait_for()
    assert dialog.locator("details").first.locator("tbody tr").count() == DRAWS * TRIALS
    assert dialog.locator("details tr.picked").count() == TRIALS
    dialog.get_by_text("Ids of the chosen runs").click()
    dialog.locator("code").first.wait_for()
    assert set(dialog.locator("code").all_inner_texts()) == set(best["id"])


def chosen_values(runs: pd.DataFrame, dataset: str, label: str) -> "pd.Series[float]":
    own = runs[(runs["dataset"] == dataset) & (runs["label"] == label)]
    return own.loc[own.groupby("trial")["val_env"].idxmax()].set_index("trial")["t"]


def test_a_mean_opens_its_datasets_and_these_their_runs(seen: Seen) -> None:
    seen.page.locator("table.heat tr[data-label=B] td button").first.click()
    names = [row[0] for row in seen.cells("#dialogbody")]
    assert names == list(KINDS)
    seen.page.locator("#dialogbody").get_by_role("button", name="beta, b", exact=True).click()
    seen.page.get_by_text("B on beta, b").wait_for()
    seen.page.get_by_role("button", name="Back").click()
    seen.page.locator("#dialogtitle").get_by_text("B", exact=True).wait_for()


def test_a_header_sorts_its_heat_map(seen: Seen) -> None:
    def order() -> list[str]:
        return list(seen.page.locator("table.heat").first.locator("tbody th").all_inner_texts())

    assert order() == ["A", "ERM", "D", "B"]
    seen.page.locator("table.heat").first.get_by_role("button", name="algorithm").click()
    assert order() == ["A", "B", "D", "ERM"]
    seen.page.locator("table.heat").first.get_by_role("button", name="beta, b", exact=True).click()
    assert order() == ["A", "D", "ERM", "B"]  # the smallest loss first


def test_correlations_over_runs_are_those_of_the_markdown(seen: Seen, board: Contents) -> None:
    seen.page.locator("#line").scroll_into_view_if_needed()
    seen.page.locator("[data-panel=delta]").wait_for()
    block = agreement.on_the_line(board.frames)
    for dataset, count, rho in block.rows:
        text = seen.page.locator(f'[data-panel="{dataset}"] .caption').inner_text()
        assert f"{RHO} = {rho.replace('-', MINUS)}, {count} runs" in text


def test_gains_on_a_dataset_are_drawn_best_first(seen: Seen, board: Contents) -> None:
    seen.page.select_option('[data-key="gainsOf"]', label="beta, b")
    drawn = seen.page.locator("#gains g[data-interval]").evaluate_all(
        "all => all.map(g => g.dataset.interval)"
    )
    assert drawn == ["A", "D", "C", "B"]


@pytest.mark.parametrize("width", [320, 400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_reaches_beyond_the_page(
    browser: Any, address: str, width: int, scheme: Any
) -> None:
    size: Any = {"width": width, "height": 900}
    phone = Seen(browser, address, viewport=size, color_scheme=scheme)
    phone.page.locator("#line").scroll_into_view_if_needed()
    phone.page.locator("[data-panel=delta]").wait_for()
    beyond = """[...document.querySelectorAll('main *, header *, form *')].filter((e) =>
      !e.closest('.scroll, details') && e.getBoundingClientRect().right > innerWidth + 1)
      .map((e) => e.outerHTML)"""
    assert phone.page.evaluate(beyond) == []
    assert phone.page.evaluate("document.documentElement.scrollWidth") == width
    assert phone.problems == []
    phone.page.context.close()


@pytest.mark.parametrize("width", [400, 1400])
def test_texts_of_charts_do_not_overlap(browser: Any, address: str, width: int) -> None:
    page = Seen(browser, address, viewport={"width": width, "height": 900}).page
    page.locator("#line").scroll_into_view_if_needed()
    page.locator("[data-panel=delta]").wait_for()
    overlaps = """[...document.querySelectorAll('main svg')].flatMap((chart) => {
      const place = (t) => [t.textContent, t.getBoundingClientRect()];
      const texts = [...chart.querySelectorAll('text')].map(place);
      const meet = (p, q) => p.left < q.right - 1 && q.left < p.right - 1
        && p.top < q.bottom - 3 && q.top < p.bottom - 3;
      return texts.flatMap(([a, p], i) =>
        texts.slice(i + 1).filter(([, q]) => meet(p, q)).map(([b]) => `${a} on ${b}`));
    })"""
    assert page.evaluate(overlaps) == []
    page.context.close()


def test_students_t_is_that_of_scipy(browser: Any) -> None:
    page = browser.new_page()
    script = (ASSETS / "statistics.js").read_text()
    cases = [(t, n) for t in (0.3, 2.0, 7.5, 40.0) for n in (1, 2, 3, 4, 7, 9, 10, 29)]
    found = page.evaluate(
        f"(cases) => {{ {script} return cases.map(([t, n]) => twoSidedP(t, n)); }}", cases
    )
    assert found == pytest.approx([2 * scipy.stats.t.sf(t, n) for t, n in cases], abs=1e-12)
    page.close()


def test_a_board_without_a_ceiling_shows_values(
    browser: Any, board: Contents, tmp_path: Path
) -> None:
    made_board(
        tmp_path / "plain.v1", {"d": {"ERM": 0.5, "A": 0.7}}, 2, 3, rules={"d": ("val_env",)}
    )
    file = tmp_path / "page.html"
    file.write_text(html_page(contents(str(tmp_path / "plain.v1"))))
    seen = Seen(browser, file.as_uri())
    assert "cells are values" in seen.page.locator("#summary").inner_text()
    values = {row[0]: row[-1] for row in seen.cells("#gap")}
    assert float(values["A"]) == pytest.approx(70, abs=5) and set(values) == {"A", "ERM"}
    assert seen.problems == []
    seen.page.context.close()


def test_a_board_in_part_says_what_is_still_to_come(
    browser: Any, folder: Path, kinds: pd.DataFrame, tmp_path: Path
) -> None:
    import shutil

    from oodbench.board.page.contents import contents

    part = tmp_path / "kinds.v1"
    shutil.copytree(folder, part)
    dataset_file(part, "gamma").unlink()
    for label in ("ceiling", "ERM"):
        remove_part(part, "delta", label)
    board = contents(str(part))
    assert "Not frozen yet: gamma." in markdown_page(board)
    file = tmp_path / "page.html"
    file.write_text(html_page(board))
    seen = Seen(browser, file.as_uri())
    assert "Not frozen yet: gamma." in seen.page.locator("#about").inner_text()
    assert seen.problems == []
    seen.page.context.close()
