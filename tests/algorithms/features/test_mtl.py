"""MTL against its equation."""

import torch

from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
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
            risks.append(torch.nn.functional.cross_entropy(logits, batch.y[e]))
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


def test_environments_that_are_not_drawn_keep_their_embeddings() -> None:
    algorithm = tiny("MTL")
    algorithm.train_step(tiny_batch(BINARY).of([3, 1]), 0)
    assert (algorithm.embeddings.abs().sum(1) > 0).tolist() == [False, True, False, True, False]
