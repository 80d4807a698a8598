import copy

import torch
from torch import nn

from oodbench.conformance.tiny_problems import PLAIN, network_step, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import ON_EVERY_TASK, gradient, tiny


@ON_EVERY_TASK
def test_it_steps_with_the_mean_gradient_of_a_climb_that_ends_where_it_began(task: Task) -> None:
    algorithm, batch = tiny("DGSAM", task, **PLAIN, rho=0.3), tiny_batch(task)
    order = algorithm.noise_at(batch, 0)["order"].tolist()
    network, slopes = copy.deepcopy(algorithm.network), []
    assert sorted(order) == [0, 1, 2, 3, 4]
    for e in [*order, order[0]]:
        risk = task.losses(network(batch.x[e]), batch.y[e]).mean()
        slopes.append(gradient(risk, network.parameters()))
        vector = nn.utils.parameters_to_vector(network.parameters()).detach()
        climbed = vector + 0.3 * slopes[-1] / slopes[-1].square().sum().sqrt()
        nn.utils.vector_to_parameters(climbed, network.parameters())
    wanted = torch.stack(slopes).mean(0)
    torch.testing.assert_close(network_step(algorithm, batch, 0), wanted)
