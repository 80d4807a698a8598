"""MTL and ARM, which predict by the environment of an input, against their equations."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch, tiny_problem
from oodbench.networks import build
from tests.helpers.algorithms.methods import BINARY, descend, require_same_weights, tiny


def test_three_steps_are_those_of_the_equation() -> None:
    """A linear classifier of (phi, m_e), with m_e <- .9 mean phi + .1 m_e."""
    task = TASKS["multiclass"]
    algorithm, twin = (tiny("MTL", task, **{**PLAIN, "ema": 0.9}) for _ in range(2))
    m = [torch.zeros(8, dtype=torch.float64) for _ in range(5)]
    for step in range(3):
        batch = tiny_batch(task, seed=step)
        head = twin.network.classifier
        weight = torch.cat([head.weight, twin.of_embedding.weight], 1)
        risks = []
        for e in range(5):
            phi = twin.network.featurizer(batch.x[e])
            embedding = 0.9 * phi.mean(0) + 0.1 * m[e]
            m[e] = embedding.detach()
            inputs = torch.cat([phi, embedding.expand(6, 8)], 1)
            logits = inputs @ weight.T + head.bias
            risks.append(cross_entropy(logits, batch.y[e]))
        loss = torch.stack(risks).mean()
        descend(twin, loss)
        torch.testing.assert_close(algorithm.train_step(batch, step)["loss"], loss.detach())
        torch.testing.assert_close(algorithm.embeddings, torch.stack(m))
    require_same_weights(algorithm, twin)


def test_a_prediction_takes_the_mean_of_what_is_predicted_with_it() -> None:
    algorithm = tiny("MTL")
    x = tiny_batch(BINARY).x[0]
    phi = algorithm.network.featurizer(x)
    inputs = torch.cat([phi, phi.mean(0).expand_as(phi)], 1)
    weight = torch.cat([algorithm.network.classifier.weight, algorithm.of_embedding.weight], 1)
    wanted = inputs @ weight.T + algorithm.network.classifier.bias
    torch.testing.assert_close(algorithm.predict(x), wanted)
    assert not torch.allclose(algorithm.predict(x[:2]), wanted[:2])


@pytest.mark.parametrize(("name", "buffer"), [("MTL", "embeddings"), ("Fishr", "variances")])
def test_environments_that_are_not_drawn_keep_their_buffers(name: str, buffer: str) -> None:
    algorithm = tiny(name)
    algorithm.train_step(tiny_batch(BINARY).of([3, 1]), 0)
    moved = algorithm.get_buffer(buffer).abs().sum(1) > 0
    assert moved.tolist() == [False, True, False, True, False]


def test_three_steps_of_arm_are_those_of_the_equation() -> None:
    """The context network is trained with the predictor, through the contexts' means."""
    task = TASKS["multiclass"]
    algorithm, twin = (tiny("ARM", task, **PLAIN) for _ in range(2))
    first = [p.detach().clone() for p in algorithm.context.parameters()]
    for step in range(3):
        batch = tiny_batch(task, seed=step)
        risks = []
        for e in range(5):
            context = twin.context(batch.x[e]).mean(0)
            inputs = torch.cat([batch.x[e], context.expand(6, 1)], 1)
            risks.append(cross_entropy(twin.network(inputs), batch.y[e]))
        loss = torch.stack(risks).mean()
        descend(twin, loss)
        torch.testing.assert_close(algorithm.train_step(batch, step)["loss"], loss.detach())
    require_same_weights(algorithm, twin)
    now = algorithm.context.parameters()
    assert all(not torch.equal(p, q) for p, q in zip(first, now, strict=True))


def test_an_image_has_one_more_channel_which_is_the_mean_of_its_neighbours() -> None:
    problem = replace(tiny_problem(BINARY), input_shape=(2, 8, 8))
    network = build("ConvNet", {"width": 4, "depth": 1}, problem.input_shape, 1, 0)
    cls: Any = algorithms.get("ARM")
    algorithm = cls(network, problem, cls.Hparams(batch_size=6)).eval()
    x = torch.randn(15, 2, 8, 8)
    seen: list[Tensor] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        found = algorithm.predict(x)
        made = algorithm.context(x)
    assert found.shape == (15, 1) and seen[0].shape == (15, 3, 8, 8) and made.shape == (15, 1, 8, 8)
    for rows in (slice(0, 8), slice(8, 15)):
        wanted = made[rows].mean(0)
        for channel in seen[0][rows, 2:]:
            torch.testing.assert_close(channel, wanted)
