"""Findings: tables are those of the values stored beside a page, and its numbers are in them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oodbench.datasets import datasets
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.docs import datasets_page, noise, shift_dial
from tests.docs.pages import stored
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs" / "findings"
SWEEPS = {noise: ("noise-masks", "noise-penalties"), shift_dial: ("shift-dial",)}
OF_EACH = pytest.mark.parametrize("page", [noise, shift_dial], ids=lambda page: str(page.NAME))


@OF_EACH
def test_the_tables_are_those_of_the_stored_values(page: Any) -> None:
    text = (DOCS / f"{page.NAME}.md").read_text()
    assert page.page(text, stored(DOCS, page.NAME)) == text


@OF_EACH
def test_the_numbers_of_the_text_are_in_its_tables(page: Any) -> None:
    """Those with decimals, to the digits that the text has."""
    text = (DOCS / f"{page.NAME}.md").read_text()
    table = re.compile(r"^\|.*$", re.M)
    in_tables = np.array(re.findall(r"\d+\.?\d*", " ".join(table.findall(text))), dtype=float)
    prose = re.sub(r"```.*?```|\[arXiv.*?\]\(.*?\)", "", table.sub("", text), flags=re.S)
    for number in re.findall(r"\d+\.\d+", prose):
        digits = len(number.partition(".")[2])
        assert np.abs(in_tables - float(number)).min() < 0.501 * 10.0**-digits, number


@OF_EACH
def test_the_values_are_of_the_sweeps(page: Any) -> None:
    sweeps = [read_sweep(find_sweep(name)) for name in SWEEPS[page]]
    labels = {d["label"] for sweep in sweeps for d in sweep.datasets if isinstance(d, dict)}
    values = stored(DOCS, page.NAME)
    assert values.keys() == labels
    (trials,) = {sweep.trials for sweep in sweeps}
    counts = pd.json_normalize(values, max_level=10).iloc[0].map(len)
    assert set(counts) == {trials}


def test_no_mask_and_no_penalty_is_better_than_erm_on_natural_shifts() -> None:
    values = stored(DOCS, "noise")
    text = " ".join((DOCS / "noise.md").read_text().split())
    signs = noise.significant(noise.gains(values, noise.PENALIZED))
    natural = [sign for (dataset, _), sign in signs.items() if not dataset.startswith("SEM")]
    for found in ([*noise.significant(noise.gains(values, noise.SHARES)).values()], natural):
        assert 1 not in found
        words = f"none is positive after Holm's correction, and {found.count(-1)} are losses"
        assert re.search(rf"Of {len(found)} gains (there )?{words}", text)


def trained(folder: Path, name: str, settings: list[str], **changes: Any) -> Path:
    """The results of a small version of a sweep."""
    sweep = read_sweep(find_sweep(name), settings).model_copy(update=changes)
    launch(sweep, LaunchOptions(out=folder / "out", launcher="debug"))
    return folder / "out"


@pytest.mark.slow
def test_the_command_measures_what_is_memorized(tmp_path: Path) -> None:
    datasets = read_sweep(find_sweep("noise-masks")).datasets[1:2]
    settings = ["trials=2", "steps=2", "evaluate_every=1"]
    out = trained(tmp_path, "noise-masks", settings, datasets=datasets, algorithms=["ERM"])
    (row,) = noise.measured(out)["25 % noise"].values()
    assert {len(values) for values in row.values()} == {2}
    assert row.keys() == {f"{a} {b}" for a in ("accuracy", "memorized") for b in ("chosen", "last")}
    assert all(0 <= value <= 1 for value in np.ravel([*row.values()]))


@pytest.mark.slow
def test_the_command_stores_the_errors_that_val_env_chooses(tmp_path: Path) -> None:
    sweep = read_sweep(find_sweep("shift-dial"))
    changes = {"datasets": sweep.datasets[:1], "algorithms": sweep.algorithms[:1]}
    out = trained(tmp_path, "shift-dial", ["trials=3", "steps=1", "evaluate_every=1"], **changes)
    ((label, values),) = shift_dial.measured(out).items()
    frozen = stored(DOCS, "shift_dial")[label]["ERM"]
    np.testing.assert_allclose(values["ERM"], frozen[:3], rtol=1e-4)


def test_the_page_of_datasets_has_the_figures_and_pictures_beside_it() -> None:
    text = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    measured = datasets_page.measured(ROOT / "docs")
    rooms = {name: room for name, room in measured.items() if name in datasets}
    made = datasets_page.page(text, rooms, datasets_page.pictures(ROOT / "docs"))
    table = text.partition("<!-- measured -->")[2].partition("<!-- end of measured -->")[0]
    assert table in made
    assert made.partition("<!-- pictures -->")[2] == text.partition("<!-- pictures -->")[2]
