from collections.abc import Callable

import pytest
import torch
from oodbench.algorithms.temporal_and_mask import TemporalANDMask
from torch import nn

from oodbench.optimizers import Rates, set_rates
from oodbench.train.vectorized.optimizers import RULES, VectorizedOptimizer, shared_options

SHAPES = [(3, 2), (4,)]
RATES = [Rates(0.1, 0.0), Rates(0.03, 0.2), Rates(0.01, 0.5)]
"""The rates of three runs."""

Make = Callable[[list[nn.Parameter], int], torch.optim.Optimizer]
MAKE: dict[str, Make] = {
    "adam": lambda ps, k: torch.optim.Adam(ps, lr=0.1, fused=True),
    "adamw": lambda ps, k: torch.optim.AdamW(ps, lr=0.1, fused=True),
    "sgd": lambda ps, k: torch.optim.SGD(ps, lr=0.1, momentum=(0.0, 0.5, 0.9)[k]),
    "temporal": lambda ps, k: TemporalANDMask(
        ps, betas=((0.1, 0.9, 0.5), (0.5, 0.99, 0.7), (0.9, 0.999, 0.9))[k], tau=0.2 * k
    ),
    "temporal corrected": lambda ps, k: TemporalANDMask(
        ps, tau=0.3, decay="coupled", bias_correction=True
    ),
}


def parameters(seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(*shape, generator=generator).double()) for shape in SHAPES]


def alone(name: str, steps: int) -> tuple[list[list[nn.Parameter]], list[torch.optim.Optimizer]]:
    """Three runs after some updates, each by its own optimizer."""
    runs = [parameters(k) for k in range(3)]
    optimizers = [MAKE[name](run, k) for k, run in enumerate(runs)]
    for step in range(steps):
        for k, (run, optimizer) in enumerate(zip(runs, optimizers, strict=True)):
            for p, g in zip(run, gradients(step, k), strict=True):
                p.grad = g
            set_rates(optimizer, RATES[k])
            optimizer.step()
    return runs, optimizers


def gradients(step: int, k: int) -> list[torch.Tensor]:
    return [p.detach() for p in parameters(100 * step + k + 7)]


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("name", MAKE)
def test_they_are_the_optimizers_of_torch(name: str, before: int) -> None:
    """Also where they take over states, and where the runs' own optimizers go on afterwards."""
    wanted, _ = alone(name, before + 6)
    runs, optimizers = alone(name, before)
    stacked = VectorizedOptimizer(optimizers, runs)
    matrix = torch.stack([torch.cat([p.detach().flatten() for p in run]) for run in runs])
    for step in range(before, before + 4):
        flat = [torch.cat([g.flatten() for g in gradients(step, k)]) for k in range(3)]
        (numbers,) = stacked.numbers([RATES])
        stacked.step(matrix, torch.stack(flat), numbers)
    stacked.sync_to_runs()
    for k, (run, optimizer) in enumerate(zip(runs, optimizers, strict=True)):
        for p, part in zip(run, torch.split(matrix[k], [6, 4]), strict=True):
            p.data.copy_(part.view_as(p))
        for step in range(before + 4, before + 6):
            for p, g in zip(run, gradients(step, k), strict=True):
                p.grad = g
            optimizer.step()
        for p, right in zip(run, wanted[k], strict=True):
            torch.testing.assert_close(p, right, rtol=1e-12, atol=1e-12)


def test_a_restarted_row_is_a_new_optimizer() -> None:
    runs, optimizers = alone("adam", 3)
    stacked = VectorizedOptimizer(optimizers, runs)
    stacked.restart(1)
    stacked.sync_to_runs()
    assert [len(o.state) for o in optimizers] == [2, 0, 2]


def test_every_rule_is_tested() -> None:
    made = {type(make(parameters(0), 0)) for make in MAKE.values()}
    assert made == {*RULES, TemporalANDMask}


def test_other_optimizers_have_no_rule() -> None:
    ours = parameters(0)
    for adam in (torch.optim.Adam, torch.optim.AdamW):
        assert shared_options(adam(ours, amsgrad=True)) is None
        assert shared_options(adam(ours, maximize=True)) is None
    if "decoupled_weight_decay" in torch.optim.Adam(ours).defaults:  # from torch 2.7 on
        assert shared_options(torch.optim.Adam(ours, decoupled_weight_decay=True)) is None
    assert shared_options(torch.optim.SGD(ours, momentum=0.9, nesterov=True)) is None
    assert shared_options(torch.optim.SGD(ours, momentum=0.9, dampening=0.5)) is None
    assert shared_options(torch.optim.SGD(ours, maximize=True)) is None
    assert shared_options(torch.optim.Adagrad(ours)) is None
    assert shared_options(torch.optim.Adam([{"params": ours[:1]}, {"params": ours[1:]}])) is None
