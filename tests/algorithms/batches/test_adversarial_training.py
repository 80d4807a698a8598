"""Adversarial training against a loop over examples, written out from the paper's algorithm 1."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, require_same_weights, risks_of, tiny

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
