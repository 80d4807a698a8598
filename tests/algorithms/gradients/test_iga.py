"""IGA against one backward pass for each environment."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.conformance.tiny_problems import PLAIN, network_step, tiny_batch
from oodbench.networks.base import build
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import ON_EVERY_TASK, gradient, tiny

IGA: Any = algorithms.get("IGA")


@ON_EVERY_TASK
def test_a_step_is_that_of_the_equation(task: Task) -> None:
    """R + lambda sum_e |g_e - mean g|^2, with the mean's gradient in the graph."""
    algorithm = tiny("IGA", task, **{**PLAIN, "penalty_weight": 7.0})
    batch, parameters = tiny_batch(task), list(algorithm.network.parameters())
    risks = algorithm.outputs(batch, 0).risks
    mean, *each = (gradient(value, parameters, graph=True) for value in (risks.mean(), *risks))
    total = risks.mean() + 7 * torch.stack([((g - mean) ** 2).sum() for g in each]).sum()
    wanted = gradient(total, parameters)
    torch.testing.assert_close(algorithm.objective(algorithm.outputs(batch, 0)), total)
    torch.testing.assert_close(network_step(algorithm, batch, 0), wanted)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "frozen batch": lambda: nn.BatchNorm2d(4).eval(),
    "layer": lambda: nn.LayerNorm([4, 3, 3]),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
}


@pytest.mark.parametrize("norm", NORMS)
def test_the_penalty_has_its_gradient_below_normalisation(norm: str) -> None:
    """Against separate passes of each environment, in which the risks are taken, too."""
    torch.manual_seed(0)
    network = build("ConvNet", {"width": 4, "depth": 1}, (2, 5, 5), 2, 0).double()
    layers = [nn.Conv2d(2, 4, 3), NORMS[norm](), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network.featurizer = nn.Sequential(*layers).double()
    parameters = list(network.parameters())
    nn.utils.vector_to_parameters(
        torch.randn(sum(p.numel() for p in parameters)).double(), parameters
    )
    task = Task("multiclass", 2)
    algorithm = IGA(network, Problem((2, 5, 5), task, ("a", "b", "c"), 10), IGA.Hparams())
    x, y = torch.randn(3, 6, 2, 5, 5).double(), torch.randint(2, (3, 6))
    risks = torch.stack([task.losses(network(x[e]), y[e]).mean() for e in range(3)])
    out = replace(algorithm.outputs(Batch(x, y), 0), risks=risks)
    each = torch.stack([gradient(risk, parameters, graph=True) for risk in risks])
    total = risks.mean() + 1000 * (each - each.mean(0)).square().sum()
    found = algorithm.objective(out)
    torch.testing.assert_close(found, total)
    torch.testing.assert_close(gradient(found, parameters), gradient(total, parameters))


def test_parameters_that_are_not_trained_do_not_count() -> None:
    network = build("Linear", {"diagonal": True}, (4,), 1, 0)
    task = Task("regression")
    algorithm = IGA(network, Problem((4,), task, ("a", "b"), 10), IGA.Hparams())
    out = algorithm.outputs(Batch(torch.randn(2, 3, 4), torch.randn(2, 3, 1)), 0)
    assert {name: g.shape for name, g in algorithm.risk_gradients(out).items()} == {
        "featurizer.1.weight": (2, 4)
    }


def test_batch_normalisation_takes_each_environment_by_itself_and_counts_once() -> None:
    network = build("FastResNet", {"width": 2}, (1, 8, 8), 2, 0)
    problem = Problem((1, 8, 8), Task("multiclass", 2), ("a", "b"), 10)
    algorithm = IGA(network, problem, IGA.Hparams()).double()
    x = torch.randn(2, 4, 1, 8, 8, dtype=torch.double)
    batch = Batch(x, torch.tensor([[0, 1, 0, 1]] * 2))
    out = algorithm.outputs(batch, 0)
    before = {name: b.clone() for name, b in network.named_buffers()}
    together = algorithm.risk_gradients(out)
    assert all(torch.equal(b, before[name]) for name, b in network.named_buffers())
    for e in range(2):
        algorithm.network.zero_grad()
        task = problem.task
        loss: Any = task.losses(network(x[e]), batch.y[e]).mean()
        loss.backward()
        for name, p in network.named_parameters():
            torch.testing.assert_close(together[name][e], p.grad)
