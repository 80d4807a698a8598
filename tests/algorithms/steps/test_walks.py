"""Fish, PGrad and MLDG against walks of copies of the network."""

import copy
import itertools
from typing import Any

import pytest
import torch
from oodbench.algorithms.pgrad import principal_gradient
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Batch
from oodbench.conformance.tiny_problems import PLAIN, network_step, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    descend,
    gradient,
    gradients_of_step,
    require_same_weights,
    tiny,
)

ADAM: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "lr_schedule": "constant"}


@ON_EVERY_TASK
def test_three_steps_are_parts_of_walks_with_one_optimizer(task: Task) -> None:
    """theta' goes on with one Adam's moments; theta <- theta + .3 (theta' - theta)."""
    algorithm = tiny("Fish", task, **ADAM, meta_lr=0.3)
    theta, walker = (copy.deepcopy(algorithm.network) for _ in range(2))
    optimizer = torch.optim.Adam(walker.parameters(), lr=0.02, weight_decay=0.1)
    for step in range(3):
        batch, losses = tiny_batch(task, seed=step), []
        walker.load_state_dict(theta.state_dict())
        for e in algorithm.noise_at(batch, step)["order"].tolist():
            optimizer.zero_grad()
            losses.append(task.losses(walker(batch.x[e]), batch.y[e]).mean())
            losses[-1].backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            for p, q in zip(theta.parameters(), walker.parameters(), strict=True):
                p.add_(0.3 * (q - p))
        loss = algorithm.train_step(batch, step)["loss"]
        torch.testing.assert_close(loss, torch.stack(losses).mean().detach())
        require_same_weights(algorithm.network, theta)


def test_running_statistics_go_a_part_of_the_way_too() -> None:
    ends = {}
    for share in (0.25, 1.0):
        algorithm = tiny("Fish", **ADAM, meta_lr=share)
        algorithm.network.featurizer.append(nn.BatchNorm1d(8, affine=False).double())
        algorithm.train_step(tiny_batch(BINARY), 0)
        ends[share] = algorithm.network.featurizer[-1].get_buffer("running_mean")
    torch.testing.assert_close(ends[0.25], 0.25 * ends[1.0])


@pytest.mark.parametrize("name", ["Fish", "MLDG", "DGSAM", "F_IRM_Game", "V_IRM_Game"])
def test_environments_have_every_order(name: str) -> None:
    algorithm, batch = tiny(name, environments=3), tiny_batch(BINARY, environments=3)
    orders = {tuple(algorithm.noise_at(batch, step)["order"].tolist()) for step in range(60)}
    assert orders == {*itertools.permutations(range(3))}


def by_singular_values(path: Tensor, components: int) -> Tensor:
    """The sum over components of variance shares times unit directions that go back to the start."""
    way = path[0] - path[-1]
    _, singular, rows = torch.linalg.svd(path - path.mean(0), full_matrices=False)
    variances = singular[:components].square()
    total = torch.zeros_like(way)
    for share, row in zip(variances / variances.norm(), rows, strict=False):
        total += share * (row if row @ way > 0 else -row)
    along: Tensor = total * way.norm()
    return along


def test_principal_components_are_those_of_a_decomposition_by_singular_values() -> None:
    torch.manual_seed(0)
    for steps, size, components in ((4, 30, 4), (9, 7, 2), (2, 5, 4)):
        path = torch.randn(steps, size).double().cumsum(0)
        kept = min(components, steps - 1)
        found, wanted = principal_gradient(path, components), by_singular_values(path, kept)
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)


def test_a_walk_that_stays_where_it_is_has_no_gradient() -> None:
    assert not principal_gradient(torch.ones(4, 6), 4).any()


@ON_EVERY_TASK
def test_pgrad_steps_along_the_principal_directions_of_its_walk(task: Task) -> None:
    algorithm, batch = tiny("PGrad", task, **PLAIN, outer_lr=0.3), tiny_batch(task)
    network, path = copy.deepcopy(algorithm.network), []
    for piece, order in enumerate(algorithm.noise_at(batch, 0)["orders"].tolist()):
        for e in order:
            path.append(parameters_to_vector(network.parameters()).detach())
            rows = slice(2 * piece, 2 * piece + 2)
            descend(network, task.losses(network(batch.x[e, rows]), batch.y[e, rows]).mean())
    path.append(parameters_to_vector(network.parameters()).detach())
    wanted = 0.3 * by_singular_values(torch.stack(path), 4) / PLAIN["lr"]
    torch.testing.assert_close(network_step(algorithm, batch, 0), wanted, rtol=1e-6, atol=1e-8)


INNER = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def by_pairs(algorithm: Any, task: Task, batch: Batch, inner: Any, step: int) -> Tensor:
    """mean over pairs of grad R_i(theta) + beta grad R_j(theta'), (P,)."""
    h, order = algorithm.hparams, algorithm.noise_at(batch, step)["order"].tolist()
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


@pytest.mark.parametrize(("name", "environments"), [*((n, 5) for n in INNER), ("sgd", 2)])
@ON_EVERY_TASK
def test_mldg_is_a_ring_of_pairs_each_with_a_step_of_a_new_optimizer_of_the_runs_kind(
    task: Task, name: str, environments: int
) -> None:
    values: Any = {"optimizer": name, "lr": 0.05, "weight_decay": 0.3, "beta": 0.7}
    algorithm = tiny("MLDG", task, environments, **values)
    for step in range(2):  # at the second the run's own optimizer has moments
        batch = tiny_batch(task, environments=environments)
        wanted = by_pairs(algorithm, task, batch, INNER[name], step)
        found = gradients_of_step(algorithm, batch, step)
        flat = torch.cat(
            [found[each].flatten() for each, _ in algorithm.network.named_parameters()]
        )
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
