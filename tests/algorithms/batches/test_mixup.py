"""Mixup against its equation, written out by loops."""

import pytest
import torch
from scipy.stats import beta as beta_distribution
from scipy.stats import kstest

from oodbench.algorithms import beta
from oodbench.conformance.tiny_problems import TASKS, tiny_batch
from tests.helpers.algorithms.methods import BINARY, tiny


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "distribution"])
def test_the_loss_is_that_of_every_mixed_example(kind: str) -> None:
    task = TASKS[kind]
    algorithm, batch = tiny("Mixup", task, alpha=0.4), tiny_batch(task)
    drawn = algorithm.noise_at(batch, 7)
    ring = drawn["order"].tolist()
    total = torch.zeros((), dtype=torch.float64)
    for k, e in enumerate(ring):
        m, other = drawn["share"][k], ring[(k + 1) % len(ring)]
        for i in range(6):
            x = m * batch.x[e, i] + (1 - m) * batch.x[other, i]
            logits = algorithm.network(x.unsqueeze(0))
            total += m * task.losses(logits, batch.y[e, i : i + 1])[0] / 30
            total += (1 - m) * task.losses(logits, batch.y[other, i : i + 1])[0] / 30
    out = algorithm.outputs(algorithm.prepared(batch, 7), 7)
    torch.testing.assert_close(algorithm.objective(out), total)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "distribution"])
def test_the_original_mixes_all_examples_by_one_share(kind: str) -> None:
    task = TASKS[kind]
    algorithm, batch = tiny("OrgMixup", task, alpha=0.4), tiny_batch(task)
    drawn = algorithm.noise_at(batch, 7)
    m, order = drawn["share"][0], drawn["order"].tolist()
    assert sorted(order) == list(range(30))
    total = torch.zeros((), dtype=torch.float64)
    for i, j in enumerate(order):
        (e, k), (f, n) = divmod(i, 6), divmod(j, 6)
        logits = algorithm.network((m * batch.x[e, k] + (1 - m) * batch.x[f, n]).unsqueeze(0))
        total += m * task.losses(logits, batch.y[e, k : k + 1])[0] / 30
        total += (1 - m) * task.losses(logits, batch.y[f, n : n + 1])[0] / 30
    out = algorithm.outputs(algorithm.prepared(batch, 7), 7)
    torch.testing.assert_close(algorithm.objective(out), total)


def test_each_step_and_trial_has_draws_of_its_own_that_no_hyperparameter_moves() -> None:
    batch = tiny_batch(BINARY)
    algorithm, other = (tiny("Mixup", alpha=alpha) for alpha in (0.2, 0.9))
    first, again, later = (algorithm.noise_at(batch, step) for step in (3, 3, 4))
    assert torch.equal(first["share"], again["share"]) and torch.equal(
        first["order"], again["order"]
    )
    assert not torch.equal(first["share"], later["share"])
    assert torch.equal(first["order"], other.noise_at(batch, 3)["order"])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_shares_have_the_beta_distribution(alpha: float) -> None:
    drawn = beta(alpha, (4000,), torch.Generator().manual_seed(0))
    assert kstest(drawn.numpy(), beta_distribution(alpha, alpha).cdf).pvalue > 0.01
