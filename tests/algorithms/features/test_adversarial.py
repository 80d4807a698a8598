"""DANN, CDANN, URM, ADRMX and SagNet: what the featurizer and what its adversary descends."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oodbench.algorithms.sagnet import moments
from torch import Tensor, nn

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import LAST, PLAIN, STEPS, TASKS, tiny_batch, tiny_problem
from oodbench.networks.base import build
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    gradient,
    require_same_weights,
    tiny,
)


def test_the_schedules() -> None:
    ganin = tiny("DANN", penalty_weight=3.0)
    assert ganin.reversal_weight(0) == 0
    assert ganin.reversal_weight(STEPS // 2) == pytest.approx(3 * (2 / (1 + math.exp(-5)) - 1))
    assert ganin.reversal_weight(LAST) == pytest.approx(3, rel=1e-3)
    constant = tiny("DANN", penalty_weight=3.0, schedule="constant")
    assert constant.reversal_weight(0) == constant.reversal_weight(LAST) == 3


def discriminator_loss(algorithm: Any, features: Tensor, y: Tensor, task: Task) -> Tensor:
    """The mean over all examples of -log p(environment), by its definition."""
    total = []
    for e in range(5):
        for b in range(6):
            inputs = features[e, b]
            if algorithm.conditional:
                if task.kind in ("binary", "multiclass"):
                    classes = max(task.num_outputs, 2)
                    condition = torch.eye(classes, dtype=inputs.dtype)[int(y[e, b])]
                else:
                    condition = y[e, b].nan_to_num(0.5)
                inputs = torch.cat([inputs, condition])
            total.append(-algorithm.discriminator(inputs).log_softmax(-1)[e])
    return torch.stack(total).mean()


@pytest.mark.parametrize("name", ["DANN", "CDANN"])
@ON_EVERY_TASK
def test_the_discriminator_descends_and_the_features_ascend_its_loss(name: str, task: Task) -> None:
    algorithm, batch = tiny(name, task, penalty_weight=0.7, schedule="constant"), tiny_batch(task)
    out = algorithm.outputs(batch, 0)
    loss = discriminator_loss(algorithm, out.features, batch.y, task)
    found = algorithm.objective(out)
    torch.testing.assert_close(found, out.risks.mean() + loss)
    torch.testing.assert_close(out.metrics["discriminator_loss"], loss.detach())
    wanted = {algorithm.discriminator: loss, algorithm.network.featurizer: -0.7 * loss}
    for module, term in wanted.items():
        ours, theirs = (gradient(v, module.parameters()) for v in (found, out.risks.mean() + term))
        torch.testing.assert_close(ours, theirs)


def test_a_discriminator_is_told_which_environments_a_step_is_of() -> None:
    algorithm = tiny("DANN", environments_per_step=2)
    batch = replace(tiny_batch(BINARY, 0, 2), environments=torch.tensor([4, 1]))
    out = algorithm.outputs(batch, 7)
    algorithm.objective(out)
    logits = algorithm.discriminator(out.features.flatten(0, 1))
    labels = torch.tensor([4] * 6 + [1] * 6)
    wanted = F.cross_entropy(logits, labels)
    torch.testing.assert_close(out.metrics["discriminator_loss"], wanted)


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


WEIGHTS: dict[str, Any] = {"domain_weight": 0.7, "contrast_weight": 0.4, "remix_weight": 2.0}


def contrastive(features: Tensor, targets: Tensor) -> Tensor:
    """The supervised contrastive loss, pair by pair."""
    cosines = torch.cosine_similarity(features[:, None], features[None], dim=2)
    total, counted = torch.zeros(()).double(), 0
    for i in range(len(features)):
        others = [k for k in range(len(features)) if k != i]
        same = [j for j in others if targets[j] == targets[i]]
        if same:
            below = 0.5 * (cosines[i, others] / 0.07).exp().sum() + 1e-5
            for j in same:
                above = 0.5 * (cosines[i, j] / 0.07).exp()
                total = total - (above / below + 1e-5).log() / len(same)
            counted += 1
    return total / (counted + 1)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_objective_is_the_sum_of_its_terms(kind: str) -> None:
    task = TASKS[kind]
    algorithm = tiny("ADRMX", task, **PLAIN, **WEIGHTS, adversary_weight=0.6)
    with torch.no_grad():
        for p in algorithm.of_environment.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    batch = algorithm.prepared(tiny_batch(task), 0)
    out = algorithm.outputs(batch, 0)
    x, y = batch.x.flatten(0, 1), batch.y.flatten()
    network = algorithm.network
    phi, psi = network.featurizer(x), algorithm.of_environment(x)
    rest, places = phi - psi, torch.arange(5).repeat_interleave(6)
    adversarial = F.cross_entropy(algorithm.discriminator(rest), places)
    wanted = task.losses(network.classifier(phi), y).mean()
    wanted = wanted + task.losses(algorithm.rest_head(rest), y).mean()
    wanted = wanted + 0.7 * F.cross_entropy(algorithm.environment_head(psi), places)
    wanted = wanted + 0.4 * (contrastive(phi, y) + contrastive(rest, y))
    first, second = batch.noise["pairs"].flatten(1)
    classes = 2 if kind == "binary" else 3
    for c in range(classes):
        i = max((k for k in range(30) if y[k] == c), key=lambda k: float(first[k]))
        partners = [k for k in range(30) if y[k] == c and places[k] != places[i]]
        j = max(partners, key=lambda k: float(second[k]))
        mixed = network.classifier((rest[i] + psi[j])[None])
        wanted = wanted + 2.0 / classes * task.losses(mixed, y[i : i + 1]).sum()
    found = algorithm.objective(out)
    torch.testing.assert_close(found, wanted + adversarial)
    featurizers = [*network.parameters(), *algorithm.of_environment.parameters()]
    for parameters, sign in ((featurizers, -0.6), (list(algorithm.discriminator.parameters()), 1)):
        theirs = gradient(wanted + sign * adversarial, parameters)
        torch.testing.assert_close(gradient(found, parameters), theirs)


def test_both_featurizers_start_alike_only_where_they_are_pretrained() -> None:
    algorithm = tiny("ADRMX")
    assert algorithm.problem.pretrained
    require_same_weights(algorithm.network.featurizer, algorithm.of_environment, rtol=0, atol=0)
    algorithm = tiny("ADRMX", problem={"pretrained": False})
    weights = algorithm.network.featurizer[1].weight
    assert not torch.equal(weights, algorithm.of_environment[1].weight)


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
    cls: Any = algorithms.get("SagNet")
    algorithm = cls(network, problem, cls.Hparams()).double()
    algorithm.optimizers = algorithm.configure()
    before = copy.deepcopy(network.classifier.state_dict())
    algorithm.train_step(batch, 0)
    after = network.classifier.state_dict()
    assert not any(torch.equal(after[name], value) for name, value in before.items())
