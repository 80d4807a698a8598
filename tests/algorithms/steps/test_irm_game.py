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

ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.02, "weight_decay": 0.0}


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


@pytest.mark.parametrize("name", ["F_IRM_Game", "V_IRM_Game"])
@pytest.mark.parametrize(
    "task", [BINARY, TASKS["multiclass"], TASKS["regression"]], ids=lambda task: task.kind
)
def test_six_rounds_are_those_of_the_authors_code(name: str, task: Task) -> None:
    """A representation is fixed, and a model a whole network, or it is learned in a turn of its own."""
    ours = tiny(name, task, environments=3, **ADAM)
    learned = name == "V_IRM_Game"
    features = copy.deepcopy(ours.network.featurizer) if learned else nn.Identity()
    slow = [torch.optim.Adam(features.parameters(), lr=0.02 * 0.1)] if learned else []
    first = ours.network.classifier if learned else ours.network
    models: list[nn.Module] = [copy.deepcopy(first) for _ in range(3)]
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.02) for m in models]
    start = copy.deepcopy(ours.network)
    for step in range(6):
        batch = tiny_batch(task, seed=step, environments=3)
        for optimizer in slow:
            z, y = features(batch.x.flatten(0, 1)), batch.y.flatten(0, 1)
            turn(authors_loss(task, models, z, y), features, optimizer)
        risks = []
        for e in ours.noise_at(batch, step)["order"].tolist():
            loss = authors_loss(task, models, features(batch.x[e]), batch.y[e])
            turn(loss, models[e], optimizers[e])
            risks.append(loss.item())
        found = ours.train_step(batch, step)["loss"].item()
        assert found == pytest.approx(sum(risks) / 3, rel=1e-10)
    for player, model in zip(ours.players, models, strict=True):
        assert distance(player, model) <= 1e-8
        assert distance(player, start.classifier if learned else start) > 0.05
    assert distance(models[0], models[1]) > 1e-2  # each has trained on its own environment
    if learned:
        assert distance(ours.network.featurizer, features) <= 1e-8
        assert distance(ours.network.featurizer, start.featurizer) > 5e-3
    x = tiny_batch(task, environments=3).x.flatten(0, 1)
    torch.testing.assert_close(ours.predict(x), sum(model(features(x)) for model in models) / 3)


@pytest.mark.parametrize("name", ["F_IRM_Game", "V_IRM_Game"])
def test_only_the_step_s_environments_have_a_turn(name: str) -> None:
    algorithm = tiny(name, environments=4, environments_per_step=2, **PLAIN)
    before = [copy.deepcopy(player) for player in algorithm.players]
    algorithm.train_step(tiny_batch(BINARY, environments=4), 0)
    pairs = zip(before, algorithm.players, strict=True)
    moved = {i for i, pair in enumerate(pairs) if distance(*pair) > 0}
    assert moved == {*algorithm.environments_at(0)} and len(moved) == 2
