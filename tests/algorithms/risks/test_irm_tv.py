"""IRM_TV and BIRM against loops written after their authors' code, in float64."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Batch
from oodbench.conformance.tiny_problems import LAST, PLAIN, TASKS, tiny_batch
from oodbench.tasks import Task
from tests.algorithms.risks.test_irm import squared_norm
from tests.helpers.algorithms.methods import BINARY, ON_EVERY_TASK, require_equation, tiny

REGRESSION = TASKS["regression"]
DEVIATION = 0.3
Penalty = Callable[[Task, Tensor, Batch, Tensor], Tensor]


def slope(task: Task, logits: Tensor, y: Tensor, scale: Tensor, share: float = 1.0) -> Tensor:
    """The gradient in `scale` of `share` times the risk of scaled logits, by autograd."""
    scale = scale.clone().requires_grad_()
    risk = share * task.losses(scale * logits, y).mean()
    return torch.autograd.grad(risk, scale, create_graph=True)[0]


def total_variation(task: Task, logits: Tensor, batch: Batch, scales: Tensor) -> Tensor:
    """The code masks the losses of all examples, so that each environment counts by its share."""
    one, share = torch.ones((), dtype=torch.float64), 1 / len(logits)
    sizes = [slope(task, z, y, one, share).abs() for z, y in zip(logits, batch.y, strict=True)]
    return torch.stack(sizes).sum() ** 2


def bayesian(task: Task, logits: Tensor, batch: Batch, scales: Tensor) -> Tensor:
    """The code draws an embedding of the environments ten times, and squares its gradient."""
    penalty = torch.zeros((), dtype=torch.float64)
    for drawn in scales:
        gradients = [slope(task, z, y, w) for z, y, w in zip(logits, batch.y, drawn, strict=True)]
        penalty = penalty + torch.stack(gradients).square().mean() / len(scales)
    return penalty


def authors_step(
    task: Task,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    scales: Tensor,
    weight: float,
    l2: float,
    penalty: Penalty,
) -> None:
    """The loop that both papers' code shares: weights in the loss, which 1 + weight divides above 1."""
    logits = torch.stack([network(x) for x in batch.x])
    loss = task.losses(logits.flatten(0, 1), batch.y.flatten(0, 1)).mean()
    loss = loss + l2 * squared_norm(list(network.parameters()))
    loss = loss + weight * penalty(task, logits, batch, scales)
    if weight > 1:
        loss = loss / (1 + weight)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


METHODS = pytest.mark.parametrize(
    ("name", "penalty", "values"),
    [("IRM_TV", total_variation, {}), ("BIRM", bayesian, {"deviation": DEVIATION})],
)


@METHODS
@pytest.mark.parametrize("task", [BINARY, REGRESSION], ids=lambda task: task.kind)
@pytest.mark.parametrize(
    ("optimizer", "weight", "anneal"), [("adam", 0.8, 3), ("sgd", 0.8, 3), ("sgd", 200.0, 0)]
)
def test_six_updates_are_those_of_the_authors_code(
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
    values = {
        **values,
        "optimizer": optimizer,
        "lr": lr * divisor,
        "momentum": 0.9,
        "weight_decay": 2 * l2,
        "penalty_weight": weight,
        "anneal_steps": anneal,
        "divide_by_weight": True,
        "reset_optimizer": False,
    }
    ours, theirs = tiny(name, task, **values), tiny("ERM", task).network
    without = tiny(
        "ERM", task, **{k: values[k] for k in ("optimizer", "lr", "momentum", "weight_decay")}
    )
    makers: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    options = {"momentum": 0.9} if optimizer == "sgd" else {}
    used = makers[optimizer](theirs.parameters(), lr=lr, **options)
    for step in range(6):
        batch = tiny_batch(task, seed=step)
        scales = torch.ones(1, 5)
        if name == "BIRM":
            scales = 1 + DEVIATION * ours.noise_at(batch, step)["scales"].double()
        now = 0.0 if step < anneal else weight
        authors_step(task, theirs, used, batch, scales, now, l2, penalty)
        ours.train_step(batch, step)
        without.train_step(batch, step)
    found, wanted, erm = (
        parameters_to_vector(each.parameters()) for each in (ours.network, theirs, without.network)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)
    assert (found - erm).abs().max() > 1e-5  # the penalty moves the parameters


@METHODS
@ON_EVERY_TASK
def test_the_penalty_and_its_gradient_are_those_of_autograd(
    name: str, penalty: Penalty, values: dict[str, Any], task: Task
) -> None:
    algorithm = tiny(name, task, **PLAIN, **values)
    batch = tiny_batch(task)
    noise = algorithm.noise_at(batch, LAST)
    scales = 1 + DEVIATION * noise.get("scales", torch.zeros(1, 5)).double()
    out = algorithm.outputs(replace(batch, noise=noise), LAST)
    require_equation(
        algorithm.penalty(out), penalty(task, out.logits, batch, scales), algorithm.network
    )


def test_without_deviation_birm_is_irm() -> None:
    irm, birm = tiny("IRM"), tiny("BIRM", deviation=0.0)
    batch = birm.prepared(tiny_batch(BINARY), LAST)
    wanted = irm.penalty(irm.outputs(batch, LAST))
    torch.testing.assert_close(birm.penalty(birm.outputs(batch, LAST)), wanted)
    assert len(batch.noise["scales"]) == 10


def test_the_total_variation_pulls_alike_at_every_environment() -> None:
    """IRM's penalty of scale gradients (3, -1) is 5, that of their l1 norm 4."""
    algorithm = tiny("IRM_TV", REGRESSION, environments=2)
    batch = tiny_batch(REGRESSION, environments=2)
    out = algorithm.outputs(batch, LAST)
    logits = torch.ones_like(out.logits)  # the gradient of each is 2 (1 - y)
    y = torch.stack([torch.full((6, 2), -0.5), torch.full((6, 2), 1.5)]).double()
    assert algorithm.penalty(replace(out, logits=logits, targets=y)).item() == pytest.approx(4.0)
