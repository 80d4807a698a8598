import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor

from oodbench.results.run_spec import RunSpec
from oodbench.sweep import estimate
from oodbench.sweep.estimate import forecast
from oodbench.train import evaluate
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import specs

SHORT: dict[str, Any] = {"steps": 4, "evaluate_every": 2, "trials": 3}
SETTINGS = TrainSettings()


def bundles(monkeypatch: pytest.MonkeyPatch, takes: Callable[[str], float]) -> list[RunSpec]:
    """Have each bundle of a row take so long, and its runs 2 s or, unless they are ERM's, 5 s.

    The first runs of the measured bundles are added to the list.
    """
    clock, measured = 0.0, list[RunSpec]()

    def measure(bundle: Sequence[RunSpec], settings: TrainSettings) -> tuple[float, str | None]:
        nonlocal clock
        measured.append(bundle[0])
        clock += takes(bundle[0].label)
        return len(bundle) * (2.0 if bundle[0].label == "ERM" else 5.0), None

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    monkeypatch.setattr(estimate, "_measure", measure)
    return measured


def test_a_long_evaluation_is_judged_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, predicted = 0.0, 0
    predict = Run.predict

    def slow(self: Run, x: Tensor) -> Tensor:
        nonlocal clock, predicted
        clock += len(x)
        predicted += len(x)
        return predict(self, x)

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    monkeypatch.setattr(Run, "predict", slow)
    monkeypatch.setattr(evaluate, "CHUNK", (10, 10))
    runs = specs(**SHORT, algorithms=["LeastSquares"])
    examples = sum(len(e.y) for e in Run(runs[0], SETTINGS).scored.environments.values())
    expected = forecast(runs, SETTINGS)
    assert predicted == 10 * len(expected.alone) > 0
    assert sum(map(expected.seconds_of, runs)) == pytest.approx(2 * len(runs) * examples)


def test_runs_are_measured_as_programs_of_one_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw of URM has one, two or three layers in its discriminator."""
    monkeypatch.setattr(estimate, "BUDGET", 0.001)
    urm = {"name": "URM", "hparams": {"batch_size": 2, "squash": "tanh"}}
    runs = specs(**SHORT, algorithms=[urm], hparam_draws=6, network="MLP")
    layers: dict[tuple[str, ...], set[object]] = {}
    for spec in runs:
        layers.setdefault(spec.bundle_key, set()).add(spec.hparams["discriminator_layers"])
    assert max(map(len, layers.values())) > 1
    together = forecast(runs, SETTINGS)
    assert together.of_run and not together.alone and not together.failing


@pytest.mark.parametrize(
    ("slow", "calls", "seconds", "unmeasured"),
    [("", 4, 6 * 2.0 + 6 * 5.0, 0), ("IRM", 2, 6 * 2.0 + 6 * 5.0, 0), ("ERM", 1, 12 * 2.0, 1)],
)
def test_what_is_not_measured_in_time_is_like_the_rest(
    slow: str, calls: int, seconds: float, unmeasured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = bundles(monkeypatch, lambda label: 2 * estimate.TOTAL * (label == slow))
    shares: list[float] = []
    sets = [["0.2"], ["0.1", "0.9"]]
    about = {**SHORT, "datasets": ["ColoredDigits"], "test_environments": sets}
    runs = specs(**about, algorithms=["ERM", "IRM"])
    expected = forecast(runs, SETTINGS, lambda row, share: shares.append(share))
    assert sum(map(expected.seconds_of, runs)) == seconds
    assert len(expected.unmeasured) == unmeasured
    assert shares == sorted(shares)
    assert len(measured) == len({spec.bundle_key for spec in measured}) == calls


def test_the_rows_that_time_allows_are_of_all_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = bundles(monkeypatch, lambda label: estimate.TOTAL / 5)
    datasets = [{"name": "LinearSEM", "label": "abc"[i], "num_examples": 40 + i} for i in range(3)]
    rows = ["ERM", "IRM", "VREx", "SD", "CORAL"]
    forecast(specs(**SHORT, datasets=datasets, algorithms=rows), SETTINGS)
    assert len(measured) == 6 and {spec.dataset_name for spec in measured} == {"a", "b", "c"}
