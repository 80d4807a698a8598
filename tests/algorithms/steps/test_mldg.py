"""MLDG against its equation, by a loop over copies of the network."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.conformance.tiny_problems import PLAIN, network_step, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    gradient,
    gradients_of_step,
    tiny,
)

INNER = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def brute_force(algorithm: Any, task: Task, inner: Any, step: int) -> Tensor:
    """mean over pairs of grad R_i(theta) + beta grad R_j(theta'), (P,)."""
    batch, h = tiny_batch(task), algorithm.hparams
    order = algorithm.noise_at(batch, step)["order"].tolist()
    total = torch.zeros(sum(p.numel() for p in algorithm.network.parameters()))
    for k, i in enumerate(order):
        j = order[(k + 1) % len(order)]
        other = copy.deepcopy(algorithm.network)
        risk = task.losses(other(batch.x[i]), batch.y[i]).mean()
        first = gradient(risk, other.parameters())
        risk.backward()  # type: ignore[no-untyped-call]
        inner(other.parameters(), lr=h.lr, weight_decay=h.weight_decay).step()
        risk = task.losses(other(batch.x[j]), batch.y[j]).mean()
        total = total + (first + h.beta * gradient(risk, other.parameters())) / len(order)
    return total


@ON_EVERY_TASK
@pytest.mark.parametrize("environments", [2, 5])
def test_the_gradient_is_that_of_a_ring_of_pairs(task: Task, environments: int) -> None:
    algorithm = tiny("MLDG", task, environments, **{**PLAIN, "lr": 0.2, "beta": 0.7})
    batch = tiny_batch(task).of(range(environments))
    order = algorithm.noise_at(batch, 3)["order"]
    assert sorted(order.tolist()) == list(range(environments))
    algorithm.noise = lambda batch, generator: {"order": order}
    wanted = brute_force(algorithm, task, torch.optim.SGD, 3)
    torch.testing.assert_close(network_step(algorithm, batch, 3), wanted, check_dtype=False)


@pytest.mark.parametrize("name", list(INNER))
def test_the_inner_step_is_the_first_of_a_new_optimizer_of_the_same_kind(name: str) -> None:
    algorithm = tiny("MLDG", optimizer=name, lr=0.05, weight_decay=0.3, beta=0.7)
    for step in range(2):  # at the second the run's own optimizer has moments
        wanted = brute_force(algorithm, BINARY, INNER[name], step)
        found = gradients_of_step(algorithm, tiny_batch(BINARY), step)
        assert len(found) == len([*algorithm.network.parameters()])
        flat = torch.cat([g.flatten() for g in found.values()])
        torch.testing.assert_close(flat, wanted, check_dtype=False)


def test_running_statistics_are_those_of_the_passes_at_theta() -> None:
    algorithm, batch = tiny("MLDG", **PLAIN), tiny_batch(BINARY)
    algorithm.network.featurizer.append(nn.BatchNorm1d(8).double())
    twin = copy.deepcopy(algorithm.network)
    for e in algorithm.noise_at(batch, 0)["order"].tolist():
        twin(batch.x[e])
    algorithm.train_step(batch, 0)
    for (name, ours), theirs in zip(algorithm.network.named_buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, theirs), name
