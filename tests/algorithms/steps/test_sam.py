"""SAM, SAGM, DISAM, DGSAM and adversarial training: steps at the worst point nearby, written out."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.conformance.tiny_problems import PLAIN, TASKS, network_step, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    gradient,
    require_same_weights,
    risks_of,
    tiny,
)


def flat_gradient(network: nn.Module, task: Task, shift: Tensor) -> Tensor:
    """The gradient of the pooled batch's mean risk at the network's parameters plus `shift`, (P,)."""
    network, batch = copy.deepcopy(network), tiny_batch(task)
    vector = nn.utils.parameters_to_vector(network.parameters()).detach()
    nn.utils.vector_to_parameters(vector + shift, network.parameters())
    return gradient(risks_of(network, task, batch).mean(), network.parameters())


CLIMBS: dict[str, dict[str, Any]] = {
    "SAM": {},
    "SAGM": {"alpha": 0.2},
    "DISAM": {"variance_weight": 0.4},
}


@pytest.mark.parametrize("name", CLIMBS)
@ON_EVERY_TASK
def test_steps_are_with_the_gradient_a_distance_rho_uphill(task: Task, name: str) -> None:
    """SAGM's are with the mean of two, one nearer by alpha; DISAM climbs less where risks differ."""
    values = CLIMBS[name]
    algorithm, batch = tiny(name, task, **PLAIN, rho=0.3, **values), tiny_batch(task)
    network = algorithm.network
    risks = risks_of(network, task, batch)
    variance = (risks - risks.mean()).square().sum() / 5
    climbed = risks.mean() - values.get("variance_weight", 0) * variance
    g = gradient(climbed, network.parameters())
    length = 0.3 / g.square().sum().sqrt() - values.get("alpha", 0)
    wanted = flat_gradient(network, task, length * g)
    if name == "SAGM":
        wanted = (g + wanted) / 2
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


SIZES: dict[str, Any] = {"radius": 0.375, "alpha": 0.3, "beta": 0.2, "scale": 1.5}
SIZES |= {"search_steps": 4}
BOX = 0.5625
CLASSES = TASKS["multiclass"]


def probabilities(network: nn.Module, x: Tensor) -> Tensor:
    """Log-probabilities (C,) of one input."""
    logits: Tensor = network(x.unsqueeze(0))[0]
    if len(logits) == 1:
        return F.logsigmoid(torch.cat([-logits, logits]))
    return logits.log_softmax(0)


def searched(network: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    """The neighbour of each input, itself where the search finds none."""
    generator = torch.Generator().manual_seed(seed)
    classes = [int(probabilities(network, each).argmax()) for each in x]
    place = {i: each.clone() for i, each in enumerate(x)}
    found: dict[int, Tensor] = {}
    for _ in range(4):
        eta = torch.randn(len(place), x.shape[1], generator=generator).double()
        for noise, i in zip(eta, list(place), strict=True):
            at = place[i].requires_grad_()
            (slope,) = torch.autograd.grad(probabilities(network, at)[classes[i]], at)
            moved = at.detach() - 0.45 * slope.sign() + 0.3 * noise
            place[i] = torch.maximum(torch.minimum(moved, x[i] + BOX), x[i] - BOX)
            if int(probabilities(network, place[i]).argmax()) != classes[i]:
                found[i] = place.pop(i)
    return [found.get(i, each) for i, each in enumerate(x)]


@pytest.mark.parametrize("task", [BINARY, CLASSES])
def test_six_updates_are_those_of_a_loop_over_examples(task: Task) -> None:
    values = {**PLAIN, **SIZES, "weight_decay": 1e-3, "optimizer": "adam"}
    algorithm = tiny("AdversarialTraining", task, adversarial_weight=0.3, **values)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, weight_decay=1e-3)
    shares = []
    for step in range(6):
        batch = tiny_batch(task, seed=step)
        seed = int(algorithm.noise_at(batch, step)["seed"])
        near = torch.stack(searched(network, batch.x.flatten(0, 1), seed)).view_as(batch.x)
        risk = risks_of(network, task, batch).mean()
        of_near = risks_of(network, task, replace(batch, x=near)).mean()
        optimizer.zero_grad()
        (0.7 * risk + 0.3 * of_near).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        metrics = algorithm.train_step(batch, step)
        shares.append(float((near != batch.x).any(2).double().mean()))
        assert float(metrics["critical"]) == pytest.approx(shares[-1])
    assert 0.1 < min(shares) and max(shares) < 0.9
    require_same_weights(algorithm.network, network, rtol=0, atol=1e-12)


def test_the_search_has_no_dropout_and_leaves_each_module_in_its_mode() -> None:
    algorithm = tiny("AdversarialTraining", CLASSES, **SIZES)
    batch = replace(tiny_batch(CLASSES), noise={"seed": torch.tensor(0)})
    found = algorithm.neighbours(batch)
    algorithm.network.featurizer.append(nn.Dropout(0.9))
    algorithm.network.featurizer.eval()
    modes = [m.training for m in algorithm.network.modules()]
    algorithm.network.featurizer[-1].train()
    modes[-2] = True
    again = algorithm.neighbours(batch)
    assert torch.equal(found[0], again[0]) and torch.equal(found[1], again[1])
    assert [m.training for m in algorithm.network.modules()] == modes
