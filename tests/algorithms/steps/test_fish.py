"""Fish against its algorithm, with an optimizer of torch's on a copy of the network."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.steps import noise_at, update
from oodbench.tasks import Task

FISH: Any = algorithms.get("Fish")
ADAM = {"lr": 0.02, "weight_decay": 0.1, "lr_schedule": "constant"}


@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_three_steps_are_parts_of_walks_with_one_optimizer(task: Task) -> None:
    """theta' goes on with one Adam's moments; theta <- theta + .3 (theta' - theta)."""
    algorithm = tiny_algorithm(FISH, tiny_problem(task), {**ADAM, "meta_lr": 0.3})
    theta = copy.deepcopy(algorithm.network)
    walker = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(walker.parameters(), lr=0.02, weight_decay=0.1)
    for step in range(3):
        batch, losses = tiny_batch(task, seed=step), []
        walker.load_state_dict(theta.state_dict())
        for e in noise_at(algorithm, batch, step)["order"].tolist():
            optimizer.zero_grad()
            losses.append(task.losses(walker(batch.x[e]), batch.y[e]).mean())
            losses[-1].backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            for p, q in zip(theta.parameters(), walker.parameters(), strict=True):
                p.add_(0.3 * (q - p))
        loss = update(algorithm, batch, step)["loss"]
        torch.testing.assert_close(loss, torch.stack(losses).mean().detach())
        for ours, theirs in zip(algorithm.network.parameters(), theta.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_running_statistics_go_a_part_of_the_way_too() -> None:
    task, batch = TASKS["binary"], tiny_batch(TASKS["binary"])
    ends = {}
    for share in (0.25, 1.0):
        algorithm = tiny_algorithm(FISH, tiny_problem(task), {**ADAM, "meta_lr": share})
        assert isinstance(algorithm.network.featurizer, nn.Sequential)
        algorithm.network.featurizer.append(nn.BatchNorm1d(8, affine=False).double())
        update(algorithm, batch, 0)
        ends[share] = algorithm.network.featurizer[-1].get_buffer("running_mean")
    torch.testing.assert_close(ends[0.25], 0.25 * ends[1.0])


def test_every_environment_is_walked_over_once_in_an_order_of_the_step() -> None:
    task = TASKS["binary"]
    algorithm = tiny_algorithm(FISH, tiny_problem(task))
    orders = [noise_at(algorithm, tiny_batch(task), step)["order"].tolist() for step in range(50)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert {order[0] for order in orders} == {0, 1, 2, 3, 4}
