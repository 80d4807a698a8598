"""SAM, SAGM, DISAM and DGSAM against their equations, by autograd at copies of the network."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.conformance.tiny_problems import PLAIN, network_step, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, ON_EVERY_TASK, gradient, risks_of, tiny


def flat_gradient(network: nn.Module, task: Task, shift: Tensor | float = 0.0) -> Tensor:
    """The gradient of the pooled batch's mean risk at the network's parameters plus `shift`, (P,)."""
    network, batch = copy.deepcopy(network), tiny_batch(task)
    vector = nn.utils.parameters_to_vector(network.parameters()).detach()
    nn.utils.vector_to_parameters(vector + shift, network.parameters())
    return gradient(risks_of(network, task, batch).mean(), network.parameters())


@ON_EVERY_TASK
def test_sam_steps_with_the_gradient_a_distance_rho_uphill(task: Task) -> None:
    algorithm = tiny("SAM", task, **PLAIN, rho=0.3)
    g = flat_gradient(algorithm.network, task)
    wanted = flat_gradient(algorithm.network, task, 0.3 * g / g.square().sum().sqrt())
    torch.testing.assert_close(network_step(algorithm, tiny_batch(task), 0), wanted)


@ON_EVERY_TASK
def test_sagm_steps_with_the_mean_of_two_gradients(task: Task) -> None:
    algorithm = tiny("SAGM", task, **PLAIN, rho=0.3, alpha=0.2)
    g = flat_gradient(algorithm.network, task)
    other = flat_gradient(algorithm.network, task, (0.3 / g.square().sum().sqrt() - 0.2) * g)
    torch.testing.assert_close(network_step(algorithm, tiny_batch(task), 0), (g + other) / 2)


@ON_EVERY_TASK
def test_disam_climbs_the_mean_risk_less_the_risks_variance(task: Task) -> None:
    algorithm, batch = tiny("DISAM", task, **PLAIN, rho=0.3, variance_weight=0.4), tiny_batch(task)
    network = algorithm.network
    risks = risks_of(network, task, batch)
    variance = (risks - risks.mean()).square().sum() / 5
    g = gradient(risks.mean() - 0.4 * variance, network.parameters())
    wanted = flat_gradient(network, task, 0.3 * g / g.square().sum().sqrt())
    torch.testing.assert_close(network_step(algorithm, batch, 0), wanted)


def test_weight_decay_does_not_move_the_point_nearby() -> None:
    algorithm, other = (tiny("SAM", **{**PLAIN, "weight_decay": d}) for d in (0.0, 0.5))
    weights = nn.utils.parameters_to_vector(algorithm.network.parameters()).detach()
    plain, decayed = (network_step(a, tiny_batch(BINARY), 0) for a in (algorithm, other))
    torch.testing.assert_close(decayed, plain + 0.5 * weights)


def test_where_the_gradient_is_zero_nothing_moves() -> None:
    task = Task("regression", 2)
    algorithm, batch = tiny("SAM", task, **PLAIN), tiny_batch(task)
    for p in algorithm.network.parameters():
        p.data.zero_()
    batch.y.zero_()
    assert not network_step(algorithm, batch, 0).any()


@pytest.mark.parametrize("name", ["SAM", "SAGM", "DISAM", "AdversarialTraining", "GGA"])
def test_running_statistics_are_those_of_the_first_pass(name: str) -> None:
    """GGA's search from the first step on moves no weight."""
    searched: dict[str, Any] = {"start": 0, "end": 0.5, "radius": 0.0, "search": 5}
    built = []
    for method in (name, "ERM"):
        algorithm = tiny(method, **PLAIN, **(searched if method == "GGA" else {}))
        algorithm.network.featurizer.append(nn.BatchNorm1d(8).double())
        algorithm.train_step(tiny_batch(BINARY), 0)
        built.append(dict(algorithm.network.named_buffers()))
    assert len(built[0]) == 3
    for key, value in built[1].items():
        assert torch.equal(built[0][key], value)


@ON_EVERY_TASK
def test_dgsam_steps_with_the_mean_gradient_of_a_climb_that_ends_where_it_began(task: Task) -> None:
    algorithm, batch = tiny("DGSAM", task, **PLAIN, rho=0.3), tiny_batch(task)
    order = algorithm.noise_at(batch, 0)["order"].tolist()
    network, slopes = copy.deepcopy(algorithm.network), []
    for e in [*order, order[0]]:
        risk = task.losses(network(batch.x[e]), batch.y[e]).mean()
        slopes.append(gradient(risk, network.parameters()))
        vector = nn.utils.parameters_to_vector(network.parameters()).detach()
        climbed = vector + 0.3 * slopes[-1] / slopes[-1].square().sum().sqrt()
        nn.utils.vector_to_parameters(climbed, network.parameters())
    wanted = torch.stack(slopes).mean(0)
    torch.testing.assert_close(network_step(algorithm, batch, 0), wanted)
