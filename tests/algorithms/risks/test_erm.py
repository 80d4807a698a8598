import torch

from oodbench.algorithms import Batch
from oodbench.conformance.tiny_problems import PLAIN, network_step, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import ON_EVERY_TASK, gradient, risks_of, tiny

SCALES = (0.1, 1.0)
POPULATION = torch.tensor([0.66445, 0.66445, 0.33555, 0.33555]).double()
"""Of (X, Z), from the normal equations."""


def example_1(examples: int, seed: int = 0) -> Batch:
    """Two environments of X = s N, Y = X + s N, Z = Y + N in two dimensions; sum(Y) from (X, Z)."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.tensor(SCALES).double().view(2, 1, 1)
    noise = torch.randn(3, 2, examples, 2, generator=generator, dtype=torch.float64)
    x = s * noise[0]
    y = x + s * noise[1]
    z = y + noise[2]
    return Batch(torch.cat([x, z], -1), y.sum(-1, keepdim=True))


@ON_EVERY_TASK
def test_an_update_descends_the_mean_of_the_environments_risks(task: Task) -> None:
    algorithm, batch = tiny("ERM", task, **PLAIN), tiny_batch(task)
    network = tiny("ERM", task).network
    wanted = gradient(risks_of(network, task, batch).mean(), network.parameters())
    torch.testing.assert_close(network_step(algorithm, batch, 0), wanted)
