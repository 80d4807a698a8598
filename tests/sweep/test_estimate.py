import time
from collections.abc import Sequence

import pytest
from torch import Tensor

from oodbench.results.run_spec import RunSpec
from oodbench.sweep import estimate
from oodbench.sweep.estimate import forecast
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.train import evaluate
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

SWEEP = {
    "name": "plain",
    "datasets": ["LinearSEM"],
    "algorithms": ["ERM"],
    "steps": 4,
    "evaluate_every": 2,
    "trials": 3,
}


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
    alone = {**SWEEP, "algorithms": ["LeastSquares"]}
    specs = list(make_plan(validate(alone, "plain")).runs.values())
    examples = sum(len(e.y) for e in Run(specs[0], TrainSettings()).scored.values())
    expected = forecast(specs, TrainSettings())
    assert predicted == 10 * len(expected.alone) > 0
    evaluations = len(specs) * 2
    assert expected.seconds == pytest.approx(evaluations * examples)


def test_runs_of_different_structure_are_measured_as_programs_of_one_structure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draw of URM has one, two or three layers in its discriminator."""
    monkeypatch.setattr(estimate, "BUDGET", 0.001)
    urm = {"name": "URM", "hparams": {"batch_size": 2, "squash": "tanh"}}
    values = {**SWEEP, "algorithms": [urm], "hparam_draws": 6, "network": "MLP"}
    specs = list(make_plan(validate(values, "plain")).runs.values())
    layers: dict[tuple[str, ...], set[object]] = {}
    for spec in specs:
        layers.setdefault(spec.bundle_key, set()).add(spec.hparams["discriminator_layers"])
    assert max(map(len, layers.values())) > 1
    together = forecast(specs, TrainSettings())
    assert together.seconds and not together.alone and not together.failing


@pytest.mark.parametrize(
    ("slow", "calls", "seconds", "unmeasured"),
    [("", 4, 6 * 2.0 + 6 * 5.0, 0), ("IRM", 2, 6 * 2.0 + 6 * 5.0, 0), ("ERM", 1, 12 * 2.0, 1)],
)
def test_what_is_not_measured_in_time_is_like_the_rest(
    slow: str, calls: int, seconds: float, unmeasured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, bundles, shares = 0.0, [], []

    def measured(bundle: Sequence[RunSpec], settings: TrainSettings) -> tuple[float, str | None]:
        nonlocal clock
        bundles.append(bundle[0].bundle_key)
        clock += 2 * estimate.TOTAL * (bundle[0].label == slow)
        return len(bundle) * (2.0 if bundle[0].label == "ERM" else 5.0), None

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    monkeypatch.setattr(estimate, "_measure", measured)
    values = {
        "datasets": ["ColoredDigits"],
        "algorithms": ["ERM", "IRM"],
        "test_environments": [["0.2"], ["0.1", "0.9"]],
    }
    specs = list(make_plan(validate({**SWEEP, **values}, "plain")).runs.values())
    expected = forecast(specs, TrainSettings(), lambda row, share: shares.append(share))
    assert (expected.seconds, len(expected.unmeasured)) == (seconds, unmeasured)
    assert shares == sorted(shares)
    assert len(bundles) == len(set(bundles)) == calls


def test_the_rows_that_time_allows_are_of_all_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, measured = 0.0, []

    def of_bundle(bundle: Sequence[RunSpec], settings: TrainSettings) -> tuple[float, str | None]:
        nonlocal clock
        measured.append(bundle[0].dataset_name)
        clock += estimate.TOTAL / 5
        return 1.0, None

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    monkeypatch.setattr(estimate, "_measure", of_bundle)
    datasets = [{"name": "LinearSEM", "label": "abc"[i], "num_examples": 40 + i} for i in range(3)]
    methods = {"datasets": datasets, "algorithms": ["ERM", "IRM", "VREx", "SD", "CORAL", "MMD"]}
    specs = list(make_plan(validate({**SWEEP, **methods}, "plain")).runs.values())
    forecast(specs, TrainSettings())
    assert len(measured) == 6 and {*measured} == {"a", "b", "c"}
