"""SagNet against its algorithm, example by example and with optimizers of torch's on copies."""

import copy
from typing import Any

import pytest
import torch
from oodbench.algorithms.sagnet import moments
from torch import Tensor

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_batch, tiny_problem
from oodbench.networks.base import build
from tests.helpers.algorithms.methods import require_same_weights, tiny

SAGNET: Any = algorithms.get("SagNet")
ADAM: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1, "lr_schedule": "constant"}


def style(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of one example's features, and their variance with what is added to it."""
    return features.mean(), features.var() + 1e-5


def restyled(phi: Tensor, order: Tensor, share: Tensor) -> Tensor:
    found = []
    for i, j in enumerate(order.tolist()):
        (m, v), (m_j, v_j), a = style(phi[i]), style(phi[j]), share[i, 0]
        variance = a * (v - 1e-5) + (1 - a) * (v_j - 1e-5) + 1e-5
        found.append((phi[i] - m) / v.sqrt() * variance.sqrt() + a * m + (1 - a) * m_j)
    return torch.stack(found)


def refilled(phi: Tensor, order: Tensor) -> Tensor:
    found = []
    for i, j in enumerate(order.tolist()):
        (m, v), (m_j, v_j) = style(phi[i]), style(phi[j])
        found.append(((phi[j] - m_j) / v_j.sqrt()).detach() * v.sqrt() + m)
    return torch.stack(found)


def to_uniform(logits: Tensor) -> Tensor:
    """The mean cross-entropy of predictions with the uniform distribution over classes."""
    if logits.shape[1] == 1:
        logits = torch.cat([0 * logits, logits], 1)
    return -logits.log_softmax(1).mean()


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_three_updates_are_nine_steps_of_three_optimizers(kind: str) -> None:
    task = TASKS[kind]
    algorithm = tiny("SagNet", task, **ADAM, adversary_weight=0.7)
    f, c, s = (
        copy.deepcopy(m)
        for m in (algorithm.network.featurizer, algorithm.network.classifier, algorithm.style)
    )
    of_f, of_c, of_s = (
        torch.optim.Adam(m.parameters(), lr=0.02, weight_decay=0.1) for m in (f, c, s)
    )
    for step in range(3):
        batch = tiny_batch(task, seed=step)
        draws = algorithm.noise_at(batch, step)
        share, orders = draws["share"].double(), draws["orders"]
        x, y = batch.x.flatten(0, 1), batch.y.flatten(0, 1)
        stages = ((of_f, of_c), (of_s,), (of_f,))
        wanted = []
        for order, trained in zip(orders, stages, strict=True):
            for optimizer in (of_f, of_c, of_s):
                optimizer.zero_grad()
            if of_c in trained:
                value = task.losses(c(restyled(f(x), order, share)), y).mean()
            elif of_s in trained:
                value = task.losses(s(refilled(f(x), order)), y).mean()
            else:
                value = 0.7 * to_uniform(s(refilled(f(x), order)))
            value.backward()  # type: ignore[no-untyped-call]
            wanted.append(value.detach())
            for optimizer in trained:
                optimizer.step()
        found = algorithm.train_step(batch, step)
        for name, value in zip(("loss", "style_loss", "adversarial_loss"), wanted, strict=True):
            torch.testing.assert_close(found[name], value)
        pairs = ((algorithm.network.featurizer, f), (algorithm.network.classifier, c))
        for ours, theirs in (*pairs, (algorithm.style, s)):
            require_same_weights(ours, theirs)


def test_a_single_feature_has_no_deviation() -> None:
    centred, mean, deviation = moments(torch.full((2, 1), 3.0))
    assert (centred == 0).all() and (mean == 3).all()
    torch.testing.assert_close(deviation, torch.full((2, 1), 1e-5).sqrt())


def test_a_network_without_features_of_its_own_trains_its_classifier() -> None:
    task = TASKS["binary"]
    problem, batch = tiny_problem(task), tiny_batch(task)
    network = build("Head", {}, problem.input_shape, 1, seed=0)
    algorithm: Any = SAGNET(network, problem, SAGNET.Hparams()).double()
    algorithm.optimizers = algorithm.configure()
    before = copy.deepcopy(network.classifier.state_dict())
    algorithm.train_step(batch, 0)
    after = network.classifier.state_dict()
    assert not any(torch.equal(after[name], value) for name, value in before.items())
