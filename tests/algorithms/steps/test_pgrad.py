"""PGrad against the principal components of its walk by singular values."""

import copy

import torch
from oodbench.algorithms.pgrad import principal_gradient
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from oodbench.conformance.tiny_problems import PLAIN, network_step, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import ON_EVERY_TASK, descend, tiny


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
        wanted = by_singular_values(path, kept)
        torch.testing.assert_close(
            principal_gradient(path, components), wanted, rtol=1e-7, atol=1e-9
        )


def test_a_walk_that_stays_where_it_is_has_no_gradient() -> None:
    assert not principal_gradient(torch.ones(4, 6), 4).any()


@ON_EVERY_TASK
def test_it_steps_along_the_principal_directions_of_its_walk(task: Task) -> None:
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
