"""Tables and sentences of docs/findings/shift_dial.md, against the errors that are stored beside it."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from oodbench.report.statistics import estimate
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.docs.findings import significant, stored
from tests.docs.shift_dial import (
    ARMS,
    RATIOS,
    VARIANTS,
    app,
    gap,
    measured,
    of,
    page,
    pooled_error,
)
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs" / "findings"
TEXT = " ".join((DOCS / "shift_dial.md").read_text().split())
ERRORS = stored(DOCS, "shift_dial")
GEOMETRIC, SQUARE = ARMS
EVERY = [(variant, arm, ratio) for variant in VARIANTS for arm in ARMS for ratio in RATIOS]


def mean(variant: str, arm: str, ratio: str, label: str = "ERM") -> float:
    return float(of(ERRORS, variant, arm, ratio, label).mean())


def test_the_tables_are_those_of_the_stored_errors() -> None:
    text = (DOCS / "shift_dial.md").read_text()
    assert page(text, ERRORS) == text


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
    errors = [mean("FOU", GEOMETRIC, ratio) for ratio in RATIOS]
    assert errors == sorted(errors, reverse=True)
    below = gap(ERRORS, "FOU", GEOMETRIC, "64")
    assert (
        f"error falls from {errors[0]:.3f} at a ratio of 1.5 to {errors[-1]:.3f} at 64, where IRM's is "
        f"{below.mean:.4f} lower"
    ) in TEXT
    assert below.low > 0
    fixed = [mean("FOU", SQUARE, ratio) for ratio in RATIOS]
    assert f"ERM's error is {fixed[0]:.3f} at 1.5 and {fixed[-1]:.3f} at 64" in TEXT
    assert max(fixed) - min(fixed) < 0.01
    irm = [mean("FOU", SQUARE, ratio, "IRM") for ratio in RATIOS]
    assert irm == sorted(irm, reverse=True)
    assert f"its error falls from {irm[0]:.3f} to {irm[-1]:.3f}" in TEXT


def test_noise_of_the_target_moves_erm_away() -> None:
    errors = [mean("FEU", GEOMETRIC, ratio) for ratio in RATIOS]
    assert errors == sorted(errors)
    assert f"its error rises from {errors[0]:.3f} to {errors[-1]:.3f}" in TEXT
    assert all(round(mean("FEU", SQUARE, ratio), 2) == 0.25 for ratio in RATIOS)


def test_a_confounder_leaves_an_error() -> None:
    falling, rising = ([mean(v, GEOMETRIC, r) for r in RATIOS] for v in ("POU", "PEU"))
    assert falling == sorted(falling, reverse=True) and rising == sorted(rising)
    assert f"ERM's error then falls to {falling[-1]:.3f} and not further" in TEXT
    assert falling[-1] > 5 * mean("FOU", GEOMETRIC, "64")
    assert all(abs(mean(v, SQUARE, r) - 0.25) < 0.01 for v in ("POU", "PEU") for r in RATIOS)


def test_irm_is_nearer_in_all_rows_but_two() -> None:
    signs = significant({row: gap(ERRORS, *row) for row in EVERY})
    erm = {row for row, sign in signs.items() if sign < 0}
    assert 0 not in signs.values() and erm == {
        (variant, GEOMETRIC, "64") for variant in ("FEU", "PEU")
    }
    assert f"nearer to the invariant predictor in {len(EVERY) - 2} of the {len(EVERY)} rows" in TEXT
    assert min(mean(*row, "IRM") for row in erm) > 0.88 and "IRM's error is above 0.88" in TEXT


@pytest.mark.slow
def test_the_command_stores_what_val_env_chooses(tmp_path: Path) -> None:
    sweep = read_sweep(find_sweep("shift-dial"), ["trials=3", "steps=1", "evaluate_every=1"])
    small = sweep.model_copy(
        update={"datasets": sweep.datasets[:1], "algorithms": sweep.algorithms[:1]}
    )
    launch(small, LaunchOptions(out=tmp_path / "out", launcher="debug"))
    (values,) = measured(tmp_path / "out").values()
    label = f"FOU, {GEOMETRIC}, ratio 1.5"
    np.testing.assert_allclose(values["ERM"], ERRORS[label]["ERM"][:3], rtol=1e-4)
    failed = CliRunner().invoke(app, [str(tmp_path / "out"), "--docs", str(tmp_path / "none")])
    assert failed.exit_code
