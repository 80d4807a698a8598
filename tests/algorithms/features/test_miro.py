"""MIRO against its equation, by hand in float64."""

import copy
from typing import Any

import torch
from torch import nn

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.conformance.tiny_problems import PLAIN, tiny_batch
from oodbench.networks.base import build
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    ON_EVERY_TASK,
    require_same_weights,
    risks_of,
    tiny,
)

MIRO = algorithms.get("MIRO")


@ON_EVERY_TASK
def test_it_minimises_its_equation_and_the_variances_are_learned_faster(task: Task) -> None:
    algorithm = tiny("MIRO", task, **{**PLAIN, "ld": 0.7})
    batch = tiny_batch(task)
    first = copy.deepcopy(algorithm.network)
    with torch.no_grad():
        for p in algorithm.network.parameters():
            p.add_(0.1)
        algorithm.spreads[0].copy_(torch.linspace(-2, 1, len(algorithm.spreads[0])))
    twin, spread = copy.deepcopy(algorithm.network), algorithm.spreads[0].detach().clone()
    spread.requires_grad_()
    f, f0 = (n.featurizer(batch.x.flatten(0, 1)) for n in (twin, first))
    v = torch.log(1 + spread.exp()) + 1e-5
    penalty = (((f - f0.detach()) ** 2 / v + v.log()) / 2).mean()
    loss = risks_of(twin, task, batch).mean() + 0.7 * penalty
    wanted = torch.autograd.grad(loss, [*twin.parameters(), spread])
    now = [*algorithm.network.parameters(), algorithm.spreads[0]]
    before = [p.detach().clone() for p in now]
    found = algorithm.train_step(batch, 0)
    torch.testing.assert_close(found["loss"], loss.detach())
    torch.testing.assert_close(found["distance"], penalty.detach())
    for i, (p, was, gradient) in enumerate(zip(now, before, wanted, strict=True)):
        rate = 0.1 if i == len(now) - 1 else 0.01
        torch.testing.assert_close(was - p.detach(), rate * gradient)
    require_same_weights(algorithm.original, first, rtol=0, atol=0)


def test_variances_start_at_a_tenth_one_for_each_channel_of_each_stage() -> None:
    network = build("ResNet18", {}, (3, 32, 32), 2, 0)
    problem = Problem((3, 32, 32), Task("multiclass", 2), ("a",), 10, pretrained=True)
    hparams: Any = MIRO.Hparams()
    algorithm: Any = MIRO(network, problem, hparams)
    assert [len(s) for s in algorithm.spreads] == [64, 64, 128, 256, 512]
    for spread in algorithm.spreads:
        variance = nn.functional.softplus(spread) + 1e-5
        torch.testing.assert_close(variance, torch.full_like(variance, 0.1))
    algorithm.optimizers = algorithm.configure()
    algorithm.train()
    assert not algorithm.original.training
    batch = Batch(torch.randn(1, 4, 3, 32, 32), torch.ones(1, 4).long())
    assert algorithm.train_step(batch, 0)["loss"].isfinite()
    copy.deepcopy(algorithm).train_step(batch, 1)
