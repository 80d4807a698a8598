"""Fish against its algorithm, with an optimizer of torch's on a copy of the network."""

import copy
from typing import Any

import torch
from torch import nn

from oodbench.conformance.tiny_problems import tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, ON_EVERY_TASK, require_same_weights, tiny

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


def test_every_environment_is_walked_over_once_in_an_order_of_the_step() -> None:
    algorithm = tiny("Fish")
    orders = [algorithm.noise_at(tiny_batch(BINARY), step)["order"].tolist() for step in range(50)]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)
    assert {order[0] for order in orders} == {0, 1, 2, 3, 4}
