"""Tables of docs/findings/shift_dial.md, against the errors that are stored beside it."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from oodbench.report.statistics import estimate
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.docs.findings import DOCS, stored
from tests.docs.shift_dial import ARMS, RATIOS, VARIANTS, measured, of, page, pooled_error

PAGE = (DOCS / "shift_dial.md").read_text()

ERRORS = stored("shift_dial")


def test_the_tables_are_those_of_the_stored_errors() -> None:
    assert page(PAGE, ERRORS) == PAGE


def test_the_errors_are_of_the_sweep() -> None:
    sweep = read_sweep(find_sweep("shift-dial"))
    every = product(VARIANTS, ARMS, RATIOS)
    labels = {f"{variant}, {arm}, ratio {ratio}" for variant, arm, ratio in every}
    assert {entry.label for entry in sweep.datasets} == labels == {*ERRORS}
    assert {len(v) for cell in ERRORS.values() for v in cell.values()} == {len(sweep.trials)}
    assert all(cell.keys() == {"ERM", "IRM"} for cell in ERRORS.values())


@pytest.mark.parametrize("variant", ["FOU", "FEU"])
def test_erm_has_its_closed_form_without_a_confounder(variant: str) -> None:
    for arm in ARMS:
        for ratio in RATIOS:
            found = estimate(of(ERRORS, variant, arm, ratio, "ERM"))
            assert abs(found.mean - pooled_error(variant, arm, ratio)) < 4 * found.stderr


@pytest.mark.slow
def test_the_command_stores_what_val_env_chooses(tmp_path: Path) -> None:
    sweep = read_sweep(find_sweep("shift-dial"), ["trials=3", "steps=1", "evaluate_every=1"])
    small = {"datasets": sweep.datasets[:1], "algorithms": sweep.algorithms[:1]}
    launch(sweep.model_copy(update=small), LaunchOptions(out=tmp_path / "out", launcher="debug"))
    (values,) = measured(tmp_path / "out").values()
    stored_values = ERRORS[f"FOU, {ARMS[0]}, ratio 1.5"]["ERM"][:3]
    np.testing.assert_allclose(values["ERM"], stored_values, rtol=1e-4)
