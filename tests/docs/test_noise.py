"""Tables and sentences of docs/findings/noise.md, against the values that are stored beside it."""

from pathlib import Path

import numpy as np
import pytest

from oodbench.sweep.file import Row, find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.docs.findings import significant, stored
from tests.docs.noise import (
    NOISES,
    SHARES,
    masks_found,
    mean,
    measured,
    more_with_noise,
    page,
    penalties_found,
)
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs" / "findings"
TEXT = " ".join((DOCS / "noise.md").read_text().split())
VALUES = stored(DOCS, "noise")
CLEAN, *NOISY = SHARES
AND, AND_HALF = "AND-mask, environments, 1", "AND-mask, environments, 0.5"
EXAMPLES, GAF = "AND-mask, examples, 0.1", "GAF, 4 micro-batches, 0.9"


def percents(row: str, what: str) -> str:
    """A row's means with 25 and 50 % noise, as the page has them."""
    low, high = (100 * mean(VALUES, share, row, what).mean for share in NOISY)
    return f"{low:.1f} % and {high:.1f} %"


def test_the_tables_are_those_of_the_stored_values() -> None:
    text = (DOCS / "noise.md").read_text()
    assert page(text, VALUES) == text


def test_the_values_are_of_the_sweeps() -> None:
    masks, penalties = (read_sweep(find_sweep(f"noise-{n}")) for n in ("masks", "penalties"))
    labels = [entry.label for sweep in (masks, penalties) for entry in sweep.datasets]
    assert [*VALUES] == labels and masks.trials == penalties.trials == range(10)
    counts = {len(v) for of in VALUES.values() for row in of.values() for v in row.values()}
    assert counts == {10}
    assert labels == [
        *SHARES,
        *(f"{d}, {noise}" for d, noises in NOISES.items() for noise in noises),
    ]


def test_erm_memorizes_and_early_stopping_prevents_it() -> None:
    last = percents("ERM", "memorized last").replace(
        " and ", " of the wrong labels with 25 % noise and "
    )
    assert f"ERM has memorized {last} with 50 %" in TEXT
    assert (
        f"choose it has memorized {percents('ERM', 'memorized chosen')}, and its test accuracy"
        in TEXT
    )
    clean = 100 * mean(VALUES, CLEAN, "ERM", "accuracy chosen").mean
    tests = percents("ERM", "accuracy chosen")
    assert f"test accuracy of {tests} is near that with clean labels, {clean:.1f} %" in TEXT


def test_masks_prevent_it() -> None:
    assert (
        f"full agreement of the environments has memorized {percents(AND, 'memorized last')}"
        in TEXT
    )
    assert f"with half of it {percents(AND_HALF, 'memorized last')}" in TEXT
    assert f"threshold of 0.1 suffices: {percents(EXAMPLES, 'memorized last')}" in TEXT


def test_no_row_is_better_than_erm_that_stops_early() -> None:
    found = [*significant(masks_found(VALUES)).values()]
    assert 1 not in found
    assert (
        f"Of {len(found)} gains none is positive after Holm's correction, and {found.count(-1)} are losses"
        in TEXT
    )


def test_gaf_costs_least() -> None:
    text = (
        f"it has memorized {percents(GAF, 'memorized last')} at the last step, where its test accuracy is "
        f"{percents(GAF, 'accuracy last')} and ERM's {percents('ERM', 'accuracy last')}"
    )
    assert text in TEXT
    worst = {
        row: min(masks_found(VALUES)[share, row].mean for share in SHARES)
        for row in VALUES[CLEAN]
        if row != "ERM"
    }
    assert max(worst, key=lambda row: worst[row]).startswith("GAF, 4 micro-batches")


def test_resistance_does_not_appear_on_natural_shifts() -> None:
    signs = significant(penalties_found(VALUES))
    natural = [sign for (dataset, *_), sign in signs.items() if dataset != "SEM"]
    text = f"Of {len(natural)} gains there none is positive after Holm's correction, and "
    assert 1 not in natural and f"{text}{natural.count(-1)} are losses" in TEXT
    rows = {(dataset, row) for dataset, _, row in signs}
    more = significant({place: more_with_noise(VALUES, *place) for place in sorted(rows)})
    assert [p for p, sign in more.items() if sign and p[0] != "SEM"] == [("desert rodents", "IRM")]
    change = 100 * more_with_noise(VALUES, "desert rodents", "IRM").mean
    of = [
        mean(VALUES, f"desert rodents, {n}", "ERM", "accuracy chosen").mean
        for n in ("no noise", "50 %")
    ]
    clean, noisy = (f"{100 * value:.1f} %" for value in of)
    there = [row for row in rows if row[0] != "SEM"]
    assert change > 0 and f"one of the {len(there)} changes there is positive" in TEXT
    assert (
        f"{change:.1f} points smaller with most noise, where ERM itself has fallen from {clean} to {noisy}"
        in TEXT
    )
    assert penalties_found(VALUES)["desert rodents", "50 %", "IRM"].mean < 0


def test_on_the_model_it_depends_on_the_method() -> None:
    found = penalties_found(VALUES)
    gains = [place for place, sign in significant(found).items() if sign == 1]
    assert gains == [("SEM", "1 deviation", "GroupDRO")] and f"gain of all {len(found)}" in TEXT
    for row, sign, words in (
        ("GroupDRO", 1, "lower than ERM's with most noise"),
        ("IRM", -1, "higher"),
    ):
        gain, change = found["SEM", "1 deviation", row], more_with_noise(VALUES, "SEM", row)
        text = f"{sign * gain.mean:.2f} {words}, {sign * change.mean:.2f} more than without"
        assert text in TEXT


@pytest.mark.slow
def test_the_command_measures_a_sweep(tmp_path: Path) -> None:
    sweep = read_sweep(find_sweep("noise-masks"), ["trials=2", "steps=2", "evaluate_every=1"])
    small = sweep.model_copy(
        update={"datasets": sweep.datasets[1:2], "algorithms": [Row(name="ERM")]}
    )
    launch(small, LaunchOptions(out=tmp_path / "out", launcher="debug"))
    (row,) = measured(tmp_path / "out")["25 % noise"].values()
    assert {len(values) for values in row.values()} == {2}
    assert row.keys() == {f"{a} {b}" for a in ("accuracy", "memorized") for b in ("chosen", "last")}
    assert all(0 <= value <= 1 for value in np.ravel([*row.values()]))
