"""The measures of memorization, on a sweep of seconds and on numbers whose answer is known."""

from pathlib import Path

import numpy as np
import pytest

import oodbench
from oodbench.diagnose import memorization
from oodbench.diagnose.memorization import CSR, TEST, TRAIN, over_training, spread
from oodbench.report.sources import frames_of
from oodbench.report.statistics import mean_and_error
from oodbench.verify.computations.memorization import orderings
from tests.helpers.commands import type_in

DATA = {"name": "NoisyLabels", "base": "digits", "num_examples": 60, "num_test_examples": 20}


def launched(out: Path, rows: dict[str, int], **options: object) -> str:
    """The directory of a sweep on real data, random inputs and random labels, in its own process."""
    data = DATA | options
    oodbench.sweep(
        datasets=[
            {**data, "label": "real", "fraction": 0},
            {**data, "label": "randX", "fraction": 0, "randX": 1},
            {**data, "label": "randY", "fraction": 1},
        ],
        algorithms=[{"name": "ERM", "label": r, "network": {"width": n}} for r, n in rows.items()],
        network={"name": "MLP", "hparams": {"depth": 1}},
        trials=2,
        steps=4,
        evaluate_every=2,
        holdout=0,
        out=out,
        launcher="debug",
        keep_predictions=True,
    )
    return str(out)


@pytest.fixture(autouse=True)
def few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memorization, "UPDATES", 4)
    monkeypatch.setattr(memorization, "EVERY", 2)


@pytest.mark.slow
def test_a_finished_sweep_has_its_table_figures_and_orderings(tmp_path: Path) -> None:
    results = launched(tmp_path / "out", {"ERM": 8}, same_data=True, critical=20)
    shown = type_in("diagnose", "memorization", results, "--figures", tmp_path / "figures", code=0)
    assert all(name in shown.stdout for name in ("real", "randX", "randY", "Gini", "CSR, last"))
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert figures == {"easy-examples", "gini", "over-training"}
    frames = frames_of([results])
    curves = over_training(frames)
    assert len(curves) == 3 * 2 * 2
    assert "over-training" not in memorization._figures(curves[curves["step"] == 4], {}, {})
    numbers = curves[[TRAIN, TEST, CSR]].to_numpy()
    assert ((numbers >= 0) & (numbers <= 1)).all()
    values = orderings(2, {"memorization-real-random": frames, "memorization-one-epoch": frames})
    assert len(values) == 10 and np.isfinite(values["Gini, real - randX"]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "figure"),
    [
        ({"4 units": 4, "8 units": 8}, "capacity"),
        ({"none": 4, "dropout 0.2": 8, "dropout 0.4": 9}, "regularizers"),
    ],
)
def test_rows_that_differ_are_compared(rows: dict[str, int], figure: str, tmp_path: Path) -> None:
    results = launched(tmp_path / "out", rows)
    shown = type_in("diagnose", "memorization", results, "--figures", tmp_path / "figures", code=0)
    assert "other data" in shown.stdout and "`same_data`" in shown.stdout
    assert "CSR" not in shown.stdout and "binomial" not in shown.stdout  # nothing was measured
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"gini", figure}


def test_equally_hard_examples_have_the_binomial_spread() -> None:
    rng = np.random.default_rng(0)
    equal = (rng.random((60, 2000)) < 0.3).astype(float)
    mean, error = mean_and_error(spread(equal))
    assert abs(mean - 1) < 4 * error < 0.1
    rates = rng.choice([0.1, 0.5], 2000)
    unequal = spread((rng.random((60, 2000)) < rates).astype(float))
    binomial = 0.3 * 0.7 / 6  # the variance of equally hard examples' rates in groups of 6 runs
    wanted = 0.2**2 + (0.3 * 0.7 - 0.2**2) / 6
    assert mean_and_error(unequal)[0] == pytest.approx((wanted / binomial) ** 0.5, rel=0.03)


def test_results_without_accuracies_are_refused(tmp_path: Path) -> None:
    oodbench.sweep(["LinearSEM"], ["ERM"], out=tmp_path, steps=2, trials=1, launcher="debug")
    result = type_in("diagnose", "memorization", tmp_path, code=2)
    assert "these results record no accuracy" in result.output
