"""Tables and sentences of docs/findings/noise.md, against the values that are stored beside it."""

from pathlib import Path

import numpy as np
import pytest

from oodbench.sweep.file import Row, find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.docs.findings import DOCS, significant, stored
from tests.docs.noise import (
    BY_VALIDATION,
    NOISES,
    PENALTIES,
    SHARES,
    gains,
    measured,
    more_with_noise,
    page,
)

PAGE = (DOCS / "noise.md").read_text()
TEXT = " ".join(PAGE.split())
VALUES = stored("noise")
MASKS, ON_PENALTIES, MORE = gains(VALUES, SHARES), gains(VALUES, PENALTIES), more_with_noise(VALUES)
AND, AND_HALF = "AND-mask, environments, 1", "AND-mask, environments, 0.5"
EXAMPLES, GAF = "AND-mask, examples, 0.1", "GAF, 4 micro-batches, 0.9"


def percent(dataset: str, row: str = "ERM", what: str = "accuracy chosen") -> str:
    """A row's mean, as the page has it."""
    return f"{100 * np.mean(VALUES[dataset][row][what]):.1f} %"


def percents(row: str, what: str, between: str = " and ") -> str:
    """A row's means with 25 and 50 % noise."""
    return between.join(percent(share, row, what) for share in SHARES[1:])


WRONG = percents("ERM", "memorized last", " of the wrong labels with 25 % noise and ")


def test_the_tables_are_those_of_the_stored_values() -> None:
    assert page(PAGE, VALUES) == PAGE


def test_the_values_are_of_the_sweeps() -> None:
    sweeps = [read_sweep(find_sweep(f"noise-{name}")) for name in ("masks", "penalties")]
    labels = [entry.label for sweep in sweeps for entry in sweep.datasets]
    assert [*VALUES] == labels == [*SHARES, *PENALTIES]
    assert {sweep.trials for sweep in sweeps} == {range(10)}
    counts = {len(v) for of in VALUES.values() for row in of.values() for v in row.values()}
    assert counts == {10}


@pytest.mark.parametrize(
    "sentence",
    [
        f"At its last step ERM has memorized {WRONG} with 50 %",
        f"choose it has memorized {percents('ERM', 'memorized chosen')}, and its test accuracy of "
        f"{percents('ERM', 'accuracy chosen')} is near that with clean labels, {percent('clean labels')}",
        "full agreement of the environments has memorized " + percents(AND, "memorized last"),
        f"with half of it {percents(AND_HALF, 'memorized last')}",
        f"threshold of 0.1 suffices: {percents(EXAMPLES, 'memorized last')}",
        f"it has memorized {percents(GAF, 'memorized last')} at the last step, where its test accuracy is "
        f"{percents(GAF, 'accuracy last')} and ERM's {percents('ERM', 'accuracy last')}",
    ],
)
def test_what_is_memorized_is_as_the_page_says(sentence: str) -> None:
    assert sentence in TEXT


def test_no_row_is_better_than_erm_that_stops_early_and_gaf_costs_least() -> None:
    found = [*significant(MASKS).values()]
    count = f"Of {len(found)} gains none is positive after Holm's correction"
    assert 1 not in found and f"{count}, and {found.count(-1)} are losses" in TEXT
    worst = {row: min(MASKS[share, row].mean for share in SHARES) for _, row in MASKS}
    assert max(worst, key=lambda row: worst[row]).startswith("GAF, 4 micro-batches")


def test_resistance_does_not_appear_on_natural_shifts() -> None:
    natural = [
        s for (name, _), s in significant(ON_PENALTIES).items() if not name.startswith("SEM")
    ]
    text = f"Of {len(natural)} gains there none is positive after Holm's correction, and "
    assert 1 not in natural and f"{text}{natural.count(-1)} are losses" in TEXT
    there = {place: sign for place, sign in significant(MORE).items() if place[0] != "SEM"}
    assert [place for place, sign in there.items() if sign] == [("desert rodents", "IRM")]
    change = 100 * MORE["desert rodents", "IRM"].mean
    assert change > 0 and f"one of the {len(there)} changes there is positive" in TEXT
    clean, _, noisy = (percent(f"desert rodents, {noise}") for noise in NOISES["desert rodents"])
    text = f"{change:.1f} points smaller with most noise, where ERM itself has fallen from "
    assert f"{text}{clean} to {noisy}" in TEXT
    assert ON_PENALTIES["desert rodents, 50 %", "IRM"].mean < 0


def test_on_the_model_it_depends_on_the_method() -> None:
    positive = [place for place, sign in significant(ON_PENALTIES).items() if sign == 1]
    assert positive == [("SEM, 1 deviation", "GroupDRO")]
    assert f"gain of all {len(ON_PENALTIES)}" in TEXT
    for row, sign, words in (
        ("GroupDRO", 1, "lower than ERM's with most noise"),
        ("IRM", -1, "higher"),
    ):
        gain, change = ON_PENALTIES["SEM, 1 deviation", row], MORE["SEM", row]
        text = f"{sign * gain.mean:.2f} {words}, {sign * change.mean:.2f} more than without"
        assert text in TEXT


def test_validation_environments_leave_no_resistance() -> None:
    masks = [*significant(gains(VALUES, SHARES, BY_VALIDATION)).values()]
    text = f"By `val_env` there is no gain either, and there are {masks.count(-1)} losses."
    assert 1 not in masks and text in TEXT
    found = gains(VALUES, PENALTIES, BY_VALIDATION)
    positive = [place for place, sign in significant(found).items() if sign == 1]
    assert positive == [("SEM, no noise", row) for row in ("MMREx", "GroupDRO")]
    clean, most = (found[f"SEM, {noise}", "GroupDRO"].mean for noise in NOISES["SEM"][::2])
    assert f"GroupDRO's gain on the model is {clean:.2f} without noise and {most:.2f} with" in TEXT
    changes = significant(more_with_noise(VALUES, BY_VALIDATION))
    assert not any(changes.values()) and f"none of the {len(changes)} changes is" in TEXT


@pytest.mark.slow
def test_the_command_measures_a_sweep(tmp_path: Path) -> None:
    sweep = read_sweep(find_sweep("noise-masks"), ["trials=2", "steps=2", "evaluate_every=1"])
    small = {"datasets": sweep.datasets[1:2], "algorithms": [Row(name="ERM")]}
    launch(sweep.model_copy(update=small), LaunchOptions(out=tmp_path / "out", launcher="debug"))
    (row,) = measured(tmp_path / "out")["25 % noise"].values()
    assert {len(values) for values in row.values()} == {2}
    steps = ("chosen", "by val_env", "last")
    assert row.keys() == {f"{a} {b}" for a in ("accuracy", "memorized") for b in steps}
    assert all(0 <= value <= 1 for value in np.ravel([*row.values()]))
