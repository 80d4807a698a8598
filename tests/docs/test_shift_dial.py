"""Tables and sentences of docs/findings/shift_dial.md, against the errors that are stored beside it."""

from pathlib import Path

import numpy as np
import pytest

from oodbench.report.statistics import estimate
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.docs.findings import DOCS, significant, stored
from tests.docs.shift_dial import ARMS, RATIOS, VARIANTS, gap, measured, of, page, pooled_error

PAGE = (DOCS / "shift_dial.md").read_text()
TEXT = " ".join(PAGE.split())
ERRORS = stored("shift_dial")
GEOMETRIC, SQUARE = ARMS
EVERY = [(variant, arm, ratio) for variant in VARIANTS for arm in ARMS for ratio in RATIOS]


def means(variant: str, arm: str, label: str = "ERM") -> list[float]:
    """The mean error of a method's weights at each ratio."""
    return [float(of(ERRORS, variant, arm, ratio, label).mean()) for ratio in RATIOS]


def test_the_tables_are_those_of_the_stored_errors() -> None:
    assert page(PAGE, ERRORS) == PAGE


def test_the_errors_are_of_the_sweep() -> None:
    sweep = read_sweep(find_sweep("shift-dial"))
    labels = {f"{variant}, {arm}, ratio {ratio}" for variant, arm, ratio in EVERY}
    assert {entry.label for entry in sweep.datasets} == labels == {*ERRORS}
    assert {len(v) for cell in ERRORS.values() for v in cell.values()} == {len(sweep.trials)}
    assert all(cell.keys() == {"ERM", "IRM"} for cell in ERRORS.values())


@pytest.mark.parametrize("variant", ["FOU", "FEU"])
def test_erm_has_its_closed_form_without_a_confounder(variant: str) -> None:
    for arm in ARMS:
        for ratio in RATIOS:
            found = estimate(of(ERRORS, variant, arm, ratio, "ERM"))
            assert abs(found.mean - pooled_error(variant, arm, ratio)) < 4 * found.stderr


def test_noise_of_effects_makes_erm_invariant_and_the_shift_does_not() -> None:
    falling, fixed = means("FOU", GEOMETRIC), means("FOU", SQUARE)
    assert falling == sorted(falling, reverse=True) and max(fixed) - min(fixed) < 0.01
    below = gap(ERRORS, "FOU", GEOMETRIC, "64")
    text = f"error falls from {falling[0]:.3f} at a ratio of 1.5 to {falling[-1]:.3f} at 64, where "
    assert below.low > 0 and f"{text}IRM's is {below.mean:.4f} lower" in TEXT
    assert f"ERM's error is {fixed[0]:.3f} at 1.5 and {fixed[-1]:.3f} at 64" in TEXT
    irm = means("FOU", SQUARE, "IRM")
    assert irm == sorted(irm, reverse=True)
    assert f"its error falls from {irm[0]:.3f} to {irm[-1]:.3f}" in TEXT


def test_noise_of_the_target_moves_erm_away() -> None:
    rising = means("FEU", GEOMETRIC)
    assert rising == sorted(rising)
    assert f"its error rises from {rising[0]:.3f} to {rising[-1]:.3f}" in TEXT
    assert {round(error, 2) for error in means("FEU", SQUARE)} == {0.25}


def test_a_confounder_leaves_an_error() -> None:
    falling, rising = means("POU", GEOMETRIC), means("PEU", GEOMETRIC)
    assert falling == sorted(falling, reverse=True) and rising == sorted(rising)
    assert f"ERM's error then falls to {falling[-1]:.3f} and not further" in TEXT
    assert falling[-1] > 5 * means("FOU", GEOMETRIC)[-1]
    assert means("POU", SQUARE) + means("PEU", SQUARE) == pytest.approx([0.25] * 8, abs=0.01)


def test_irm_is_nearer_in_all_rows_but_two() -> None:
    signs = significant({row: gap(ERRORS, *row) for row in EVERY})
    erm = {row for row, sign in signs.items() if sign < 0}
    assert 0 not in signs.values() and erm == {(v, GEOMETRIC, "64") for v in ("FEU", "PEU")}
    assert f"nearer to the invariant predictor in {len(EVERY) - 2} of the {len(EVERY)} rows" in TEXT
    assert min(means(variant, GEOMETRIC, "IRM")[-1] for variant in ("FEU", "PEU")) > 0.88
    assert "IRM's error is above 0.88" in TEXT


@pytest.mark.slow
def test_the_command_stores_what_val_env_chooses(tmp_path: Path) -> None:
    sweep = read_sweep(find_sweep("shift-dial"), ["trials=3", "steps=1", "evaluate_every=1"])
    small = {"datasets": sweep.datasets[:1], "algorithms": sweep.algorithms[:1]}
    launch(sweep.model_copy(update=small), LaunchOptions(out=tmp_path / "out", launcher="debug"))
    (values,) = measured(tmp_path / "out").values()
    stored_values = ERRORS[f"FOU, {GEOMETRIC}, ratio 1.5"]["ERM"][:3]
    np.testing.assert_allclose(values["ERM"], stored_values, rtol=1e-4)
