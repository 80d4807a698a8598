import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oodbench.algorithms.dann import reverse_gradient
from torch import Tensor

from oodbench.conformance.tiny_problems import LAST, PLAIN, STEPS, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, ON_EVERY_TASK, tiny


def make(name: str, task: Task, **values: object) -> Any:
    return tiny(name, task, **{**PLAIN, **values})


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


@pytest.mark.parametrize("name", ["DANN", "CDANN"])
@ON_EVERY_TASK
def test_the_discriminator_descends_and_the_features_ascend_its_loss(name: str, task: Task) -> None:
    algorithm, batch = make(name, task, penalty_weight=0.7, schedule="constant"), tiny_batch(task)
    out = algorithm.outputs(batch, 0)
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


def test_a_discriminator_is_told_which_environments_a_step_is_of() -> None:
    algorithm = tiny("DANN", environments_per_step=2)
    batch = replace(tiny_batch(BINARY, 0, 2), environments=torch.tensor([4, 1]))
    out = algorithm.outputs(batch, 7)
    algorithm.objective(out)
    logits = algorithm.discriminator(out.features.flatten(0, 1))
    labels = torch.tensor([4] * 6 + [1] * 6)
    wanted = F.cross_entropy(logits, labels)
    torch.testing.assert_close(out.metrics["discriminator_loss"], wanted)
