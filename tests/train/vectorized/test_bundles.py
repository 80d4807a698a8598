"""Which runs are vectorized, and how many at once."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from oodbench.results.run_spec import RunSpec
from oodbench.train import vectorized
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized import DEVICE_SHARE, capacity, why_alone
from oodbench.train.vectorized.program import VectorizedProgram
from tests.helpers.algorithms.methods import OURS
from tests.helpers.results.sweeps import DIGITS, tiny

FIVE = {"name": "ERM", "hparams": {"batch_size": 5}}


def bundle(**changes: Any) -> list[RunSpec]:
    runs = tiny(**{"algorithms": ["ERM"], "network": "Linear", "trials": 2} | changes).runs
    return list(runs.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"algorithms": ["LeastSquares"]}, "an update of its own"),
        (
            {"network": {"name": "MLP", "hparams": {"width": 1024}}, "datasets": ["Spirals"]},
            "its steps are long enough",
        ),
        (
            {"network": {"name": "MNISTCNN"}, "datasets": [DIGITS], "algorithms": [FIVE]},
            "its steps are long enough",
        ),
    ],
    ids=["small", "own update", "large", "convolutions"],
)
def test_who_is_trained_alone(changes: dict[str, Any], reason: str | None) -> None:
    found = why_alone(Run(bundle(**changes)[0], TrainSettings()))
    assert found is None if reason is None else found is not None and reason in found


@pytest.mark.nightly
@pytest.mark.parametrize("dataset", [{"name": "Spirals"}, DIGITS])
def test_it_is_told_of_every_method_and_changes_nothing(dataset: dict[str, Any]) -> None:
    network = {"name": "MLP", "hparams": {"width": 8}}
    small = dataset | {"training": {"hparams": {"batch_size": 4}}}
    plan = tiny(datasets=[small], algorithms=OURS, network=network, trials=1, hparam_draws=1)
    assert len(plan.runs) > 50
    for spec in plan.runs.values():
        run, other = Run(spec, TrainSettings()), Run(spec, TrainSettings())
        why_alone(run)
        before, after = other.algorithm.state_dict(), run.algorithm.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items()), spec.label


def test_the_capacity_on_a_cpu_is_by_size_and_never_none(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (
        Run(bundle(datasets=[{"name": "LinearSEM", "num_examples": n}])[0], TrainSettings())
        for n in (200, 2000)
    )
    assert capacity(small) > 5 * capacity(large) > 5
    monkeypatch.setattr(vectorized, "CPU_BYTES", 1)
    assert capacity(large) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_capacity_on_a_gpu_keeps_within_the_share() -> None:
    settings = TrainSettings(device="cuda:0")
    entry = {"name": "ERM", "hparams": {"batch_size": 512}}
    changes: dict[str, Any] = {"datasets": ["Spirals"], "network": "MLP", "algorithms": [entry]}
    run = Run(bundle(**changes)[0], settings)
    eighth = replace(settings, device_share=8.5 / capacity(run))
    free, _ = torch.cuda.mem_get_info("cuda:0")
    count = capacity(Run(run.spec, eighth))
    assert 7 <= count <= 9
    before = torch.cuda.memory_allocated("cuda:0")
    torch.cuda.reset_peak_memory_stats("cuda:0")
    VectorizedProgram([Run(run.spec, settings) for _ in range(count)]).gradients(0)
    used = torch.cuda.max_memory_allocated("cuda:0") - before
    assert used <= DEVICE_SHARE * eighth.device_share * free
