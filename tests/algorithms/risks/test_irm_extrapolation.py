"""VIRMv1 and MMIRMv1 against the authors' loop, with a backward pass to a scale of the logits."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.algorithms import Batch
from oodbench.conformance.tiny_problems import PLAIN, tiny_batch
from oodbench.errors import UserError
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, ON_EVERY_TASK, tiny


def variance(penalties: Tensor, share: float) -> Tensor:
    mean = penalties.sum() / len(penalties)
    spread = (penalties - mean).square().sum() / (len(penalties) - 1)
    return (1 - share) * mean + share * spread


def worst(penalties: Tensor, least: float) -> Tensor:
    """The best vertex of the weights that sum to one: all at their least except one."""
    count = len(penalties)
    vertices = least + (1 - count * least) * torch.eye(count, dtype=penalties.dtype)
    return (vertices @ penalties).max()


METHODS: Any = {"VIRMv1": ("variance_share", variance), "MMIRMv1": ("lambda_min", worst)}
CASES = [("VIRMv1", 0.3), ("VIRMv1", 0.9), ("MMIRMv1", -0.6), ("MMIRMv1", 0.1)]


def total(
    network: nn.Module, task: Task, batch: Batch, weight: float, name: str, value: float
) -> Tensor:
    """The authors' loss without weight decay, divided by a weight above one."""
    risks, penalties = [], []
    for x, y in batch.minibatches():
        logits = network(x)
        scale = torch.ones((), dtype=logits.dtype, requires_grad=True)
        risks.append(task.losses(logits, y).mean())
        risk = task.losses(logits * scale, y).mean()
        (slope,) = torch.autograd.grad(risk, scale, create_graph=True)
        penalties.append(slope**2)
    penalty: Tensor = METHODS[name][1](torch.stack(penalties), value)
    found = torch.stack(risks).mean() + weight * penalty
    return found / max(weight, 1.0)


@pytest.mark.parametrize(("name", "value"), CASES)
@ON_EVERY_TASK
def test_six_updates_are_those_of_the_authors_loop(task: Task, name: str, value: float) -> None:
    """The weight is one in three updates, then 50, with Adam and weight decay."""
    values: dict[str, Any] = {**PLAIN, "optimizer": "adam", "weight_decay": 0.02}
    values |= {"divide_by_weight": True, "reset_optimizer": False, METHODS[name][0]: value}
    algorithm = tiny(name, task, **values, penalty_weight=50.0, anneal_steps=3)
    networks = {weight: copy.deepcopy(algorithm.network) for weight in (50.0, 0.0)}
    for last, network in networks.items():
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        for step in range(6):
            weight = (1.0 if step < 3 else last) if last else 0.0
            loss = total(network, task, tiny_batch(task, step), weight, name, value)
            norm = sum(p.square().sum() for p in network.parameters())
            optimizer.zero_grad()
            (loss + 0.01 * norm / max(weight, 1.0)).backward()
            optimizer.step()
    for step in range(6):
        algorithm.train_step(tiny_batch(task, step), step)
    ours, theirs, erm = (
        nn.utils.parameters_to_vector(n.parameters())
        for n in (algorithm.network, networks[50.0], networks[0.0])
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    assert (theirs - erm).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "values"), [("VIRMv1", {"variance_share": 0.0}), ("MMIRMv1", {"lambda_min": 0.2})]
)
def test_one_end_of_the_range_is_irm(name: str, values: dict[str, float]) -> None:
    batch, found = tiny_batch(BINARY), []
    for method, own in ((name, values), ("IRM", {})):
        algorithm = tiny(method, BINARY, 5, penalty_weight=7.0, anneal_steps=0, **own)
        found.append(algorithm.objective(algorithm.outputs(batch, 0)))
    torch.testing.assert_close(*found)


def test_a_value_out_of_range_is_told() -> None:
    with pytest.raises(UserError, match=r"^MMIRMv1: 'lambda_min' must be at most 1/5 with that"):
        tiny("MMIRMv1", lambda_min=0.3)
    with pytest.raises(UserError, match=r"^'variance_share' in .* between 0\.0 and 1\.0, not 1\.5"):
        tiny("VIRMv1", variance_share=1.5)
