"""VIRMv1, MMIRMv1, IRM_TV and BIRM against loops written after their authors' code, in float64."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.algorithms import Batch
from oodbench.conformance.tiny_problems import PLAIN
from oodbench.errors import UserError
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    ON_EVERY_TASK,
    require_six_updates,
    risks_of,
    scale_gradient,
    squared_norm,
    tiny,
)


def variance(penalties: Tensor, share: float) -> Tensor:
    return (1 - share) * penalties.mean() + share * penalties.var(correction=1)


def worst(penalties: Tensor, least: float) -> Tensor:
    """The best vertex of the weights that sum to one: all at their least except one."""
    count = len(penalties)
    vertices = least + (1 - count * least) * torch.eye(count, dtype=penalties.dtype)
    return (vertices @ penalties).max()


EXTRAPOLATIONS: Any = {"VIRMv1": ("variance_share", variance), "MMIRMv1": ("lambda_min", worst)}
CASES = [("VIRMv1", 0.3), ("VIRMv1", 0.9), ("MMIRMv1", -0.6), ("MMIRMv1", 0.1)]


@pytest.mark.parametrize(("name", "value"), CASES)
@ON_EVERY_TASK
def test_six_updates_of_extrapolations_are_those_of_the_authors_loop(
    task: Task, name: str, value: float
) -> None:
    """The weight is one in three updates, then 50, with Adam and weight decay."""
    values: dict[str, Any] = {**PLAIN, "optimizer": "adam", "weight_decay": 0.02}
    values |= {"divide_by_weight": True, "reset_optimizer": False, EXTRAPOLATIONS[name][0]: value}
    algorithm = tiny(name, task, **values, penalty_weight=50.0, anneal_steps=3)

    def loss(network: nn.Module, batch: Batch, step: int, factor: float) -> Tensor:
        """The authors' loss, divided by a weight above one."""
        weight = factor * (1.0 if step < 3 else 50.0)
        slopes = [scale_gradient(task, network(x), y) for x, y in batch.minibatches()]
        penalty: Tensor = EXTRAPOLATIONS[name][1](torch.stack(slopes).square(), value)
        total = risks_of(network, task, batch).mean() + weight * penalty
        return (total + 0.01 * squared_norm(network)) / max(weight, 1.0)

    require_six_updates(algorithm, loss, partial(torch.optim.Adam, lr=0.01))


def test_a_share_or_a_least_weight_out_of_range_is_told() -> None:
    with pytest.raises(UserError, match=r"^MMIRMv1: 'lambda_min' must be at most 1/5 with that"):
        tiny("MMIRMv1", lambda_min=0.3)
    with pytest.raises(UserError, match=r"^'variance_share' in .* between 0\.0 and 1\.0, not 1\.5"):
        tiny("VIRMv1", variance_share=1.5)


DEVIATION = 0.3
Penalty = Callable[[Task, Tensor, Batch, Tensor], Tensor]


def total_variation(task: Task, logits: Tensor, batch: Batch, scales: Tensor) -> Tensor:
    """The code masks the losses of all examples, so that each environment counts by its share."""
    sizes = [scale_gradient(task, z, y).abs() for z, y in zip(logits, batch.y, strict=True)]
    return torch.stack(sizes).mean() ** 2


def bayesian(task: Task, logits: Tensor, batch: Batch, scales: Tensor) -> Tensor:
    """The code draws an embedding of the environments ten times, and squares its gradient."""
    penalty = torch.zeros((), dtype=torch.float64)
    for drawn in scales:
        each = zip(logits, batch.y, drawn.tolist(), strict=True)
        gradients = [scale_gradient(task, z, y, at=w) for z, y, w in each]
        penalty = penalty + torch.stack(gradients).square().mean() / len(scales)
    return penalty


VARIATIONS = pytest.mark.parametrize(
    ("name", "penalty", "values"),
    [("IRM_TV", total_variation, {}), ("BIRM", bayesian, {"deviation": DEVIATION})],
)


@VARIATIONS
@ON_EVERY_TASK
@pytest.mark.parametrize(
    ("optimizer", "weight", "anneal"), [("adam", 0.8, 3), ("sgd", 0.8, 3), ("sgd", 200.0, 0)]
)
def test_six_updates_of_variations_are_those_of_the_authors_code(
    name: str,
    penalty: Penalty,
    values: dict[str, Any],
    task: Task,
    optimizer: str,
    weight: float,
    anneal: int,
) -> None:
    l2, lr = 1e-2, 1e-2 if optimizer == "adam" else 1e-4
    divisor = weight / (1 + weight) if weight > 1 else 1.0  # ours divides by the weight
    values = {**values, "optimizer": optimizer, "lr": lr * divisor, "momentum": 0.9}
    values |= {"weight_decay": 2 * l2, "penalty_weight": weight, "anneal_steps": anneal}
    values |= {"divide_by_weight": True, "reset_optimizer": False}
    ours = tiny(name, task, **values)

    def loss(network: nn.Module, batch: Batch, step: int, factor: float) -> Tensor:
        """The loop that both papers' code shares: 1 + weight divides a loss with a weight above 1."""
        logits = torch.stack([network(x) for x in batch.x])
        scales = torch.ones(1, 5)
        if name == "BIRM":
            scales = 1 + DEVIATION * ours.noise_at(batch, step)["scales"].double()
            assert len(scales) == 10
        now = 0.0 if step < anneal else weight
        risk = task.losses(logits, batch.y).mean()
        found = risk + l2 * squared_norm(network)
        found = found + factor * now * penalty(task, logits, batch, scales)
        return found / (1 + now) if now > 1 else found

    made: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": partial(torch.optim.SGD, momentum=0.9)}
    require_six_updates(ours, loss, partial(made[optimizer], lr=lr), moved=1e-5)
