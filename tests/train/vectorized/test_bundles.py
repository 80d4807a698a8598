"""Which runs are vectorized, how many at once, and what a method says that cannot be."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from oodbench.results.run_spec import RunSpec
from oodbench.train import vectorized
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized import DEVICE_SHARE, capacity, explained, why_alone
from oodbench.train.vectorized.program import OfEachRun, VectorizedProgram
from tests.helpers.algorithms.methods import OURS
from tests.helpers.results.sweeps import DIGITS, SPIRALS, tiny

FIVE = {"name": "ERM", "hparams": {"batch_size": 5}}
SOME = {"name": "DANN", "hparams": {"environments_per_step": 2}}


def bundle(**changes: Any) -> list[RunSpec]:
    runs = tiny(**{"algorithms": ["ERM"], "network": "Linear", "trials": 2} | changes).runs
    return list(runs.values())


def of(network: str, **hparams: Any) -> dict[str, Any]:
    """The changes for runs of a network on digits."""
    return {"datasets": [DIGITS], "network": {"name": network, "hparams": hparams}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        (of("MLP", width=8), None),
        ({"algorithms": ["LeastSquares"]}, "it overrides `update`"),
        ({"algorithms": ["ExampleANDMask"]}, "combines the gradients of single examples"),
        ({"datasets": [SPIRALS], "algorithms": [SOME]}, "environments that are drawn for each run"),
        (of("MLP", dropout=0.5), "for dropout or noise"),
        (of("MLP", hidden_noise=0.1), "for dropout or noise"),
        (of("ConvNet", depth=1), "batch normalisation"),
        ({**of("MLP", width=1024), "datasets": ["Spirals"]}, "its steps are long enough"),
        ({**of("MNISTCNN"), "algorithms": [FIVE]}, "its steps are long enough"),
    ],
)
def test_who_is_trained_alone(changes: dict[str, Any], reason: str | None) -> None:
    found = why_alone(Run(bundle(**changes)[0], TrainSettings()))
    assert found is None if reason is None else found is not None and reason in found


@pytest.mark.parametrize("name", ["CMA", "HGP", "Hutchinson"])
def test_derivatives_of_the_head_are_vectorized_for_many_classes(name: str) -> None:
    several = bundle(datasets=[DIGITS], algorithms=[name])
    program = VectorizedProgram([Run(spec, TrainSettings()) for spec in several])
    assert program.run_steps(2) == [None] * len(several)


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


KEPT = torch.zeros(4)
NAMES: Any = OfEachRun(("a", "b"))
SIZES: Any = OfEachRun((2, 2))


def branch(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


class Method:
    """The hooks of a method, one of which breaks."""

    def __init__(self, body: Callable[[Tensor], Any]) -> None:
        self.body = body

    def objective(self, x: Tensor) -> Any:
        return self.body(x)

    def next_buffers(self, x: Tensor) -> Any:
        return self.body(x)


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        (branch, "branches in Python"),
        (lambda x: x * max(x.sum(), 0), "branches in Python"),
        (lambda x: x * x.sum().item(), "stay with tensors"),
        (lambda x: x * torch.rand(()), "make them in `noise`"),
        (lambda x: x[x > 0].sum(), "multiply by the mask"),
        (lambda x: torch.unique(x).sum(), "multiply by the mask"),
        (lambda x: x.numpy(), "stay with tensors"),
        (lambda x: x * NAMES.index("b"), "read them in `__init__`"),
        (lambda x: x * ("b" in NAMES), "read them in `__init__`"),
        (lambda x: x * (NAMES == ("a", "b")), "read them in `__init__`"),
        (lambda x: x * sum(SIZES), "read them in `__init__`"),
        (lambda x: x * torch.tensor(SIZES), "read them in `__init__`"),
        (lambda x: torch.split(x, SIZES), "read them in `__init__`"),
        (lambda x: x * torch.ones(SIZES), "read them in `__init__`"),
        (lambda x: KEPT.copy_(x), "from `next_buffers`"),
        (lambda x: KEPT.add_(x), "from `next_buffers`"),
    ],
)
def test_an_error_says_what_to_write_instead(body: Callable[[Tensor], Any], advice: str) -> None:
    method = Method(body)
    for hook in (method.objective, method.next_buffers):
        with pytest.raises((RuntimeError, TypeError, ValueError, AttributeError)) as caught:
            vmap(hook)(torch.randn(3, 4))
        found = explained(caught.value)
        assert found is not None and found.startswith(f"`{hook.__name__}` (test_bundles.py, line ")
        assert advice in found
