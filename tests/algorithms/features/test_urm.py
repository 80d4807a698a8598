import pytest
import torch
from torch import nn

from oodbench.conformance.tiny_problems import PLAIN, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import ON_EVERY_TASK, gradient, tiny


@pytest.mark.parametrize(("squash", "low"), [("tanh", -1.0), ("relu", 0.0)])
@ON_EVERY_TASK
def test_network_and_discriminator_each_descend_their_own_loss(
    squash: str, low: float, task: Task
) -> None:
    algorithm = tiny("URM", task, **PLAIN, penalty_weight=0.3, squash=squash)
    batch = algorithm.prepared(tiny_batch(task), 0)
    u = batch.noise["u"]
    assert low <= u.min() < low + 0.1 and 0.9 < u.max() <= 1
    out = algorithm.outputs(batch, 0)
    phi = torch.tanh(out.features) if squash == "tanh" else out.features.clamp(min=0)
    cross_entropy, discriminator = nn.BCEWithLogitsLoss(), algorithm.discriminator
    scores, one = discriminator(phi), torch.ones(5, 6, 1).double()
    risk = task.losses(algorithm.network.classifier(phi), batch.y).mean()
    of_network = risk + 0.3 * cross_entropy(scores, one)
    of_discriminator = cross_entropy(discriminator(u), one) + 0.3 * cross_entropy(scores, 0 * one)
    found = algorithm.objective(out)
    for module, wanted in ((algorithm.network, of_network), (discriminator, of_discriminator)):
        ours, theirs = (gradient(value, module.parameters()) for value in (found, wanted))
        torch.testing.assert_close(ours, theirs)
    x = batch.x.flatten(0, 1)
    wanted = algorithm.network.classifier(phi).flatten(0, 1)
    torch.testing.assert_close(algorithm.predict(x), wanted)
