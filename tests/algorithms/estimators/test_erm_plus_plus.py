from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from oodbench.conformance.tiny_problems import PLAIN, tiny_batch
from oodbench.steps import update
from oodbench.tasks import Task
from tests.helpers.methods import ON_EVERY_TASK, tiny

NUMBERS: dict[str, Any] = {"head_only": 2, "head_lr": 0.3, "average_start": 4}


@ON_EVERY_TASK
def test_predictions_are_those_of_the_mean_of_the_weights_from_its_start_on(task: Task) -> None:
    algorithm, path = tiny("ERMPlusPlus", task, **PLAIN, **NUMBERS), []
    for step in range(8):
        update(algorithm, tiny_batch(task, step), step)
        path.append(parameters_to_vector(algorithm.network.parameters()).detach())
        mean = parameters_to_vector(algorithm.mean.parameters())
        wanted = path[-1] if step < 3 else torch.stack(path[2:]).mean(0)
        torch.testing.assert_close(mean, wanted)
    x = tiny_batch(task).x.flatten(0, 1)
    assert torch.equal(algorithm.predict(x), algorithm.mean(x))


def test_the_head_begins_alone_at_its_own_rate() -> None:
    task = Task("binary")
    algorithm = tiny("ERMPlusPlus", task, **PLAIN, **NUMBERS)
    plain = tiny("ERM", task, **{**PLAIN, "lr": 0.3}, head_only=2)
    for step in range(2):
        for method in (algorithm, plain):
            update(method, tiny_batch(task), step)
        pairs = zip(algorithm.network.parameters(), plain.network.parameters(), strict=True)
        for p, q in pairs:
            torch.testing.assert_close(p, q)
    body = algorithm.network.featurizer[1].weight.clone()
    update(algorithm, tiny_batch(task), 2)
    assert not torch.equal(algorithm.network.featurizer[1].weight, body)


def test_adam_starts_anew_after_the_head() -> None:
    algorithm = tiny("ERMPlusPlus", Task("binary"), head_only=3)
    counts = []
    for step in range(5):
        update(algorithm, tiny_batch(Task("binary")), step)
        state = algorithm.optimizers["main"].state[algorithm.network.classifier.weight]
        counts.append(int(state["step"]))
    assert counts == [1, 2, 3, 1, 2]


def test_statistics_of_the_mean_network_come_from_passes_of_its_own() -> None:
    task = Task("binary")
    algorithm = tiny("ERMPlusPlus", task, **PLAIN, head_only=0, average_start=0)
    for network in (algorithm.network, algorithm.mean):
        network.featurizer.append(nn.BatchNorm1d(8).double())
    batch = tiny_batch(task)
    update(algorithm, batch, 0)
    norm = algorithm.network.featurizer[-1]
    features = algorithm.mean.featurizer[:-1](batch.x.flatten(0, 1))
    wanted = 0.9 * norm.running_mean / 2 + 0.1 * features.mean(0)
    torch.testing.assert_close(algorithm.mean.featurizer[-1].running_mean, wanted)
