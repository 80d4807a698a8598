import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oodbench.algorithms.dann import reverse_gradient
from torch import Tensor

from oodbench.algorithms import Algorithm, Problem, algorithms, why_skipped
from oodbench.conformance.tiny_problems import (
    LAST,
    PLAIN,
    STEPS,
    TASKS,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.steps import outputs, update
from oodbench.tasks import Task

BOTH = pytest.mark.parametrize("name", ["DANN", "CDANN"])
ALL = pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
BINARY = TASKS["binary"]


def make(name: str, task: Task, **values: object) -> Any:
    return tiny_algorithm(algorithms.get(name), tiny_problem(task), {**PLAIN, **values})


def test_the_reversal_is_the_identity_with_a_negated_gradient() -> None:
    x = torch.randn(7, 3, requires_grad=True)
    reversed_x = reverse_gradient(x, 2.5)
    assert torch.equal(reversed_x, x)
    (gradient,) = torch.autograd.grad((reversed_x**2).sum(), x)
    torch.testing.assert_close(gradient, -2.5 * 2 * x.detach())


def test_the_schedules() -> None:
    ganin = make("DANN", BINARY, penalty_weight=3.0)
    assert ganin.reversal_weight(0) == 0
    assert ganin.reversal_weight(STEPS // 2) == pytest.approx(3 * (2 / (1 + math.exp(-5)) - 1))
    assert ganin.reversal_weight(LAST) == pytest.approx(3, rel=1e-3)
    constant = make("DANN", BINARY, penalty_weight=3.0, schedule="constant")
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


@BOTH
@ALL
def test_the_discriminator_descends_and_the_features_ascend_its_loss(name: str, task: Task) -> None:
    algorithm, batch = make(name, task, penalty_weight=0.7, schedule="constant"), tiny_batch(task)
    out = outputs(algorithm, batch, 0)
    loss = discriminator_loss(algorithm, out.features, batch.y, task)
    found = algorithm.objective(out)
    torch.testing.assert_close(found, out.risks.mean() + loss)
    torch.testing.assert_close(out.metrics["discriminator_loss"], loss.detach())

    def gradients(value: Tensor, parameters: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(value, list(parameters), retain_graph=True)

    own, featurizer = list(algorithm.discriminator.parameters()), algorithm.network.featurizer
    for a, b in zip(gradients(found, own), gradients(loss, own), strict=True):
        torch.testing.assert_close(a, b)
    risk = gradients(out.risks.mean(), featurizer.parameters())
    adversary = gradients(loss, featurizer.parameters())
    total = gradients(found, featurizer.parameters())
    for a, r, d in zip(total, risk, adversary, strict=True):
        torch.testing.assert_close(a, r - 0.7 * d)


@BOTH
def test_at_weight_zero_the_predictor_is_erms_and_the_discriminator_learns(name: str) -> None:
    algorithm = make(name, BINARY, optimizer="adam", penalty_weight=0.0)
    erm = tiny_algorithm(Algorithm, tiny_problem(BINARY), {**PLAIN, "optimizer": "adam"})
    losses = []
    for step in range(100):
        batch = tiny_batch(BINARY, seed=step, examples=32)
        losses.append(update(algorithm, batch, step)["discriminator_loss"].item())
        update(erm, batch, step)
    for a, b in zip(algorithm.network.parameters(), erm.network.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert sum(losses[-10:]) / 10 < math.log(5) - 0.2  # the environments' inputs differ in scale


def test_the_features_hide_their_environment() -> None:
    """At a large weight a discriminator of the features does worse than at none."""
    left = {}
    for weight in (0.0, 1.0):
        values = {"optimizer": "adam", "penalty_weight": weight, "schedule": "constant"}
        algorithm = make("DANN", BINARY, **values)
        for step in range(300):
            metrics = update(algorithm, tiny_batch(BINARY, seed=step, examples=32), step)
        left[weight] = metrics["discriminator_loss"].item()
    assert left[1.0] > left[0.0] + 0.1


@ALL
def test_the_conditional_discriminator_sees_the_targets(task: Task) -> None:
    algorithm, batch = make("CDANN", task), tiny_batch(task)
    condition = algorithm.condition(outputs(algorithm, batch, 0))
    assert condition.shape[-1] + 8 == algorithm.discriminator[0].in_features
    if task.kind in ("binary", "multiclass"):
        classes = F.one_hot(batch.y.long(), max(2, task.num_outputs)).double()
        assert torch.equal(condition, classes)
    else:
        assert torch.equal(condition, batch.y.nan_to_num(0.5))


@BOTH
def test_one_environment_is_refused(name: str) -> None:
    reason = why_skipped(algorithms.get(name), tiny_problem(BINARY, ("a",)))
    assert reason is not None and "at least two" in reason


def test_a_discriminator_is_told_which_environments_a_step_is_of() -> None:
    problem = Problem((4,), TASKS["binary"], tuple("abcde"), 1000)
    algorithm: Any = tiny_algorithm(algorithms.get("DANN"), problem, {"environments_per_step": 2})
    batch = replace(tiny_batch(TASKS["binary"], 0, 2), environments=torch.tensor([4, 1]))
    out = outputs(algorithm, batch, 7)
    algorithm.objective(out)
    logits = algorithm.discriminator(out.features.flatten(0, 1))
    labels = torch.tensor([4] * 6 + [1] * 6)
    wanted = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(out.metrics["discriminator_loss"], wanted)
