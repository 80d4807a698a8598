"""Tables of docs/findings/noise.md, against the values that are stored beside it."""

from pathlib import Path

import numpy as np
import pytest

from oodbench.sweep.file import Row, find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.docs.findings import DOCS, stored
from tests.docs.noise import (
    PENALTIES,
    SHARES,
    measured,
    page,
)

PAGE = (DOCS / "noise.md").read_text()

VALUES = stored("noise")


def test_the_tables_are_those_of_the_stored_values() -> None:
    assert page(PAGE, VALUES) == PAGE


def test_the_values_are_of_the_sweeps() -> None:
    sweeps = [read_sweep(find_sweep(f"noise-{name}")) for name in ("masks", "penalties")]
    labels = [entry.label for sweep in sweeps for entry in sweep.datasets]
    assert [*VALUES] == labels == [*SHARES, *PENALTIES]
    assert {sweep.trials for sweep in sweeps} == {range(10)}
    counts = {len(v) for of in VALUES.values() for row in of.values() for v in row.values()}
    assert counts == {10}


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
