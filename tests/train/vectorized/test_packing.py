"""Which runs are trained together, and how many."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from oodbench.results.run_spec import RunSpec
from oodbench.train.run import Run
from oodbench.train.settings import CROWD, Settings, crowds
from oodbench.train.vectorized import packing as stack_sizes
from oodbench.train.vectorized.packing import DEVICE_SHARE, alone, room
from oodbench.train.vectorized.program import Stack
from tests.helpers.sweeps import tiny


def crowd(**changes: Any) -> list[RunSpec]:
    runs = tiny(**{"algorithms": ["ERM"], "network": "Linear", "trials": CROWD} | changes).runs
    return list(runs.values())


@pytest.mark.parametrize(
    ("specs", "settings", "reason"),
    [
        (crowd(), Settings(), None),
        (crowd(trials=CROWD - 1), Settings(), "fewer than 16 runs"),
        (crowd(trials=1), Settings(batch_runs=8), None),
        (crowd(), Settings(batch_runs=1), "--batch-runs is 1"),
        (crowd(algorithms=["LeastSquares"]), Settings(), "an update of its own"),
        (
            crowd(network={"name": "MLP", "hparams": {"width": 1024}}, datasets=["Spirals"]),
            Settings(),
            "its steps are long enough",
        ),
    ],
    ids=["crowd", "few", "asked for", "asked against", "obstacle", "large"],
)
def test_who_is_trained_alone(specs: list[RunSpec], settings: Settings, reason: str | None) -> None:
    found = alone(Run(specs[0], settings), replace(settings, crowds=crowds(specs)))
    assert found is None if reason is None else found is not None and reason in found


def test_room_on_a_cpu_is_by_size_and_never_none(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (
        Run(crowd(datasets=[{"name": "LinearSEM", "num_examples": n}])[0], Settings())
        for n in (200, 2000)
    )
    assert room(small, Settings()) > 5 * room(large, Settings()) > 5
    monkeypatch.setattr(stack_sizes, "CPU_BYTES", 1)
    assert room(large, Settings()) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_room_on_a_gpu_keeps_within_the_share() -> None:
    settings = Settings(device="cuda:0")
    entry = {"name": "ERM", "hparams": {"batch_size": 512}}
    changes: dict[str, Any] = {"datasets": ["Spirals"], "network": "MLP", "algorithms": [entry]}
    run = Run(crowd(**changes)[0], settings)
    whole = room(run, settings)
    eighth = replace(settings, device_share=8.5 / whole)
    free, _ = torch.cuda.mem_get_info("cuda:0")
    count = room(run, eighth)
    assert 7 <= count <= 9
    before = torch.cuda.memory_allocated("cuda:0")
    torch.cuda.reset_peak_memory_stats("cuda:0")
    Stack([Run(run.spec, settings) for _ in range(count)]).gradients(0)
    used = torch.cuda.max_memory_allocated("cuda:0") - before
    assert used <= DEVICE_SHARE * eighth.device_share * free
