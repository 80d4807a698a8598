"""MTL against its equation."""

from typing import Any

import torch

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import (
    PLAIN,
    TASKS,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.steps import update

MTL: Any = algorithms.get("MTL")


def test_three_steps_are_those_of_the_equation() -> None:
    """A linear classifier of (phi, m_e), with m_e <- .9 mean phi + .1 m_e."""
    task = TASKS["multiclass"]
    algorithm: Any = tiny_algorithm(MTL, tiny_problem(task), {**PLAIN, "ema": 0.9})
    twin: Any = tiny_algorithm(MTL, tiny_problem(task), {**PLAIN, "ema": 0.9})
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
            risks.append(torch.nn.functional.cross_entropy(logits, batch.y[e]))
        loss = torch.stack(risks).mean()
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        with torch.no_grad():
            for p, g in zip(twin.parameters(), gradients, strict=True):
                p.sub_(0.01 * g)
        torch.testing.assert_close(update(algorithm, batch, step)["loss"], loss.detach())
        torch.testing.assert_close(algorithm.embeddings, torch.stack(m))
    for ours, theirs in zip(algorithm.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_prediction_takes_the_mean_of_what_is_predicted_with_it() -> None:
    task = TASKS["binary"]
    algorithm: Any = tiny_algorithm(MTL, tiny_problem(task))
    x = tiny_batch(task).x[0]
    phi = algorithm.network.featurizer(x)
    inputs = torch.cat([phi, phi.mean(0).expand_as(phi)], 1)
    weight = torch.cat([algorithm.network.classifier.weight, algorithm.of_embedding.weight], 1)
    wanted = inputs @ weight.T + algorithm.network.classifier.bias
    torch.testing.assert_close(algorithm.predict(x), wanted)
    assert not torch.allclose(algorithm.predict(x[:2]), wanted[:2])


def test_environments_that_are_not_drawn_keep_their_embeddings() -> None:
    task = TASKS["binary"]
    algorithm: Any = tiny_algorithm(MTL, tiny_problem(task))
    update(algorithm, tiny_batch(task).of([3, 1]), 0)
    assert (algorithm.embeddings.abs().sum(1) > 0).tolist() == [False, True, False, True, False]
