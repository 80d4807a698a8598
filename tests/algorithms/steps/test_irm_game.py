"""F_IRM_Game and V_IRM_Game against loops written after their authors' code, in float64."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, tiny

REGRESSION = TASKS["regression"]
ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.02, "weight_decay": 0.0}
ON_TASKS = pytest.mark.parametrize(
    "task", [BINARY, TASKS["multiclass"], REGRESSION], ids=lambda task: task.kind
)


def authors_loss(task: Task, models: list[nn.Module], x: Tensor, y: Tensor) -> Tensor:
    """The loss of the ensemble, with a factor 1/E before each model's output."""
    total = torch.zeros((), dtype=torch.float64)
    for model in models:
        total = total + model(x) / len(models)
    return task.losses(total, y).mean()


def turn(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The gradient of one model alone, and its optimizer's step."""
    parameters = list(model.parameters())
    for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        p.grad = gradient
    optimizer.step()


def distance(one: nn.Module, other: nn.Module) -> float:
    ours, theirs = (parameters_to_vector(m.parameters()) for m in (one, other))
    return (ours - theirs).abs().max().item()


@ON_TASKS
def test_six_rounds_with_a_fixed_representation_are_those_of_the_authors_code(task: Task) -> None:
    ours = tiny("F_IRM_Game", task, environments=3, **ADAM)
    models: list[nn.Module] = [copy.deepcopy(ours.network) for _ in range(3)]
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.02) for m in models]
    start = copy.deepcopy(ours.network)
    for step in range(6):
        batch = tiny_batch(task, seed=step, environments=3)
        risks = []
        for e in ours.noise_at(batch, step)["order"].tolist():
            loss = authors_loss(task, models, batch.x[e], batch.y[e])
            turn(loss, models[e], optimizers[e])
            risks.append(loss.item())
        found = ours.train_step(batch, step)["loss"].item()
        assert found == pytest.approx(sum(risks) / 3, rel=1e-10)
    for player, model in zip(ours.players, models, strict=True):
        assert distance(player, model) <= 1e-8
        assert distance(player, start) > 0.05
    assert distance(models[0], models[1]) > 1e-2  # each has trained on its own environment
    x = tiny_batch(task, environments=3).x.flatten(0, 1)
    wanted = sum(model(x) for model in models) / 3
    torch.testing.assert_close(ours.predict(x), wanted)


@ON_TASKS
def test_six_rounds_with_a_learned_representation_are_those_of_the_authors_code(task: Task) -> None:
    ours = tiny("V_IRM_Game", task, environments=3, **ADAM)
    features = copy.deepcopy(ours.network.featurizer)
    heads = [copy.deepcopy(ours.network.classifier) for _ in range(3)]
    start = copy.deepcopy(ours.network)
    slow = torch.optim.Adam(features.parameters(), lr=0.02 * 0.1)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.02) for m in heads]
    for step in range(6):
        batch = tiny_batch(task, seed=step, environments=3)
        z, y = features(batch.x.flatten(0, 1)), batch.y.flatten(0, 1)
        turn(authors_loss(task, heads, z, y), features, slow)
        for e in ours.noise_at(batch, step)["order"].tolist():
            z = features(batch.x[e])
            turn(authors_loss(task, heads, z, batch.y[e]), heads[e], optimizers[e])
        ours.train_step(batch, step)
    assert distance(ours.network.featurizer, features) <= 1e-8
    assert distance(ours.network.featurizer, start.featurizer) > 5e-3
    for player, head in zip(ours.players, heads, strict=True):
        assert distance(player, head) <= 1e-8
        assert distance(player, start.classifier) > 0.05
    x = tiny_batch(task, environments=3).x.flatten(0, 1)
    wanted = sum(head(features(x)) for head in heads) / 3
    torch.testing.assert_close(ours.predict(x), wanted)


@pytest.mark.parametrize("name", ["F_IRM_Game", "V_IRM_Game"])
def test_only_the_step_s_environments_have_a_turn(name: str) -> None:
    algorithm = tiny(name, environments=4, environments_per_step=2, **PLAIN)
    before = [copy.deepcopy(player) for player in algorithm.players]
    algorithm.train_step(tiny_batch(BINARY, environments=4), 0)
    pairs = zip(before, algorithm.players, strict=True)
    moved = {i for i, pair in enumerate(pairs) if distance(*pair) > 0}
    assert moved == {*algorithm.environments_at(0)} and len(moved) == 2
