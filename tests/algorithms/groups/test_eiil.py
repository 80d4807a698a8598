"""EIIL: its environments are the best of all, and its second stage is IRM on them."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.conformance.tiny_problems import tiny_batch
from tests.helpers.algorithms.methods import BINARY, require_equation, scale_gradient, tiny


def made(**values: object) -> Any:
    """EIIL on two environments in 100 steps."""
    values = {"first_stage": 0.5, "anneal_steps": 0.4, "penalty_weight": 30.0, **values}
    return tiny("EIIL", BINARY, 2, {"steps": 100}, **values)


def test_no_other_two_environments_have_a_larger_penalty() -> None:
    algorithm, batch = made(), tiny_batch(BINARY, environments=2)
    split = algorithm.next_buffers(algorithm.outputs(batch, 10))["wrong"].flatten()
    z = algorithm.network(batch.x.flatten(0, 1)).flatten().detach()
    g = (z.sigmoid() - batch.y.flatten()) * z  # d loss(s z) / d s at s = 1

    def penalty(q: Tensor) -> Any:
        return (q @ g / 12) ** 2 + ((1 - q) @ g / 12) ** 2

    every = [penalty(torch.tensor(q).double()) for q in itertools.product((0, 1), repeat=12)]
    torch.testing.assert_close(penalty(split), max(every))
    assert 0 < split.sum() < 12


@pytest.mark.parametrize(("step", "weight"), [(49, 1.0), (50, 1.0), (69, 1.0), (70, 30.0)])
def test_weight_decay_is_divided_like_the_loss(step: int, weight: float) -> None:
    assert made(weight_decay=0.6).rates(step).weight_decay == pytest.approx(0.6 / weight)


@pytest.mark.parametrize(("step", "weight"), [(50, 1.0), (69, 1.0), (70, 30.0), (99, 30.0)])
def test_the_second_stage_is_irm_on_the_environments_that_were_found(
    step: int, weight: float
) -> None:
    algorithm, batch = made(), tiny_batch(BINARY, environments=2)
    found = algorithm.next_buffers(algorithm.outputs(batch, 10))
    algorithm.load_state_dict(found, strict=False)
    with torch.no_grad():
        for p in algorithm.network.parameters():
            p.add_(0.05)
    out = algorithm.outputs(batch, step)
    out.buffers.update(algorithm.next_buffers(out))
    assert torch.equal(out.buffers["wrong"], found["wrong"])
    terms = []
    for member in (found["wrong"] > 0, found["wrong"] == 0):
        slope = scale_gradient(out.task, out.logits[member], batch.y[member])
        terms.append(out.losses[member].mean() + weight * slope**2)
    wanted = (terms[0] + terms[1]) / 2 / max(1.0, weight)
    require_equation(algorithm.minimised(out), wanted, algorithm.network)


def test_the_first_stage_is_erm() -> None:
    algorithm = made()
    out = algorithm.outputs(tiny_batch(BINARY, environments=2), 49)
    out.buffers.update(algorithm.next_buffers(out))
    require_equation(algorithm.minimised(out), out.risks.mean(), algorithm.network)
