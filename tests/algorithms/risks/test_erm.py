from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Problem, algorithms
from oodbench.conformance.tiny_problems import (
    PLAIN,
    TASKS,
    network_step,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.networks.base import build
from oodbench.steps import configure, outputs, update
from oodbench.tasks import Task

ERM = algorithms.get("ERM")
SCALES = (0.1, 1.0)
POPULATION = torch.tensor([0.66445, 0.66445, 0.33555, 0.33555]).double()
"""Of (X, Z), from the normal equations below."""


def example_1(examples: int, seed: int = 0) -> Batch:
    """Two environments of X = s N, Y = X + s N, Z = Y + N in two dimensions; sum(Y) from (X, Z)."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.tensor(SCALES).double().view(2, 1, 1)
    noise = torch.randn(3, 2, examples, 2, generator=generator, dtype=torch.float64)
    x = s * noise[0]
    y = x + s * noise[1]
    z = y + noise[2]
    return Batch(torch.cat([x, z], -1), y.sum(-1, keepdim=True))


def linear_erm(values: dict[str, Any]) -> Algorithm:
    problem = Problem((4,), Task("regression"), ("s=0.1", "s=1"), 400)
    network = build("Linear", {}, (4,), 1, 0)
    algorithm: Algorithm = ERM(network, problem, ERM.Hparams(**{**PLAIN, **values})).double()
    configure(algorithm)
    return algorithm


def test_the_population_weights_solve_the_normal_equations() -> None:
    squares = torch.tensor(SCALES).double().square()
    xx, zz = squares.mean(), (2 * squares + 1).mean()
    moments = torch.stack([torch.stack([xx, xx]), torch.stack([xx, zz])])
    weights = torch.linalg.solve(moments, torch.stack([xx, 2 * xx]))
    torch.testing.assert_close(weights, POPULATION[[0, 2]], atol=1e-5, rtol=0)


def test_least_squares_and_training_find_the_population_weights() -> None:
    batch = example_1(100_000)
    fitted = torch.linalg.lstsq(batch.x.flatten(0, 1), batch.y.flatten(0, 1)).solution.squeeze()
    torch.testing.assert_close(fitted, POPULATION, atol=0.02, rtol=0)

    batch = Batch(batch.x[:, :10_000], batch.y[:, :10_000])
    fitted = torch.linalg.lstsq(batch.x.flatten(0, 1), batch.y.flatten(0, 1)).solution.squeeze()
    algorithm = linear_erm({"lr": 0.1, "momentum": 0.9})
    for step in range(200):
        update(algorithm, batch, step)
    phi, w = list(algorithm.network.parameters())
    torch.testing.assert_close((w @ phi).squeeze(), fitted, atol=1e-4, rtol=0)
    assert torch.equal(w, torch.ones(1, 4).double())

    risks = outputs(algorithm, batch, 200).risks.detach()
    torch.testing.assert_close(risks, torch.tensor([0.23402, 1.10818]).double(), atol=0.03, rtol=0)


@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_an_update_descends_the_mean_of_the_environments_risks(task: Task) -> None:
    algorithm = tiny_algorithm(ERM, tiny_problem(task), PLAIN)
    reference = tiny_algorithm(ERM, tiny_problem(task)).network
    batch = tiny_batch(task)
    risks: list[Tensor] = []
    for e in range(5):
        risks.append(task.losses(reference(batch.x[e]), batch.y[e]).mean())
    mean = torch.stack(risks).mean()
    mean.backward()  # type: ignore[no-untyped-call]
    found = update(algorithm, batch, 0)
    assert found["loss"].item() == pytest.approx(mean.item())
    for after, before in zip(algorithm.network.parameters(), reference.parameters(), strict=True):
        assert before.grad is not None
        torch.testing.assert_close(after, before - 0.01 * before.grad)


def test_the_learning_rate_follows_its_schedule() -> None:
    problem, batch = Problem((4,), TASKS["binary"], tuple("abcde"), 10), tiny_batch(TASKS["binary"])
    moves = {}
    for schedule in ("constant", "drop"):
        algorithm = tiny_algorithm(ERM, problem, {**PLAIN, "lr_schedule": schedule})
        moves[schedule] = network_step(algorithm, batch, 8)
    torch.testing.assert_close(moves["drop"], 0.1 * moves["constant"])
