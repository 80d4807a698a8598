"""RSC against its equations, by a loop over examples and numpy's percentiles."""

from typing import Any

import numpy as np
import pytest
import torch
from oodbench.algorithms.rsc import among_largest
from torch import Tensor, nn

from oodbench.conformance.tiny_problems import TASKS, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import require_equation, tiny


def score(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """The target's logit of one example."""
    if task.kind == "binary":
        return logits[0] if y == 1 else -logits[0]
    return logits[y]


def probability(task: Task, logits: Tensor, y: Tensor) -> float:
    if task.kind == "binary":
        return score(task, logits.detach(), y).sigmoid().item()
    return score(task, logits.detach().softmax(0), y).item()


def brute_force(algorithm: Any, task: Task, f: float, b: float) -> Tensor:
    """The mean loss on the features that are left, example by example."""
    batch = tiny_batch(task)
    featurizer, classifier = algorithm.network.featurizer, algorithm.network.classifier
    kept, drops, examples = [], [], []
    for x, y in zip(batch.x.flatten(0, 1), batch.y.flatten(0, 1), strict=True):
        features = featurizer(x.unsqueeze(0))[0]
        start = features.detach().requires_grad_()
        (g,) = torch.autograd.grad(score(task, classifier(start), y), start)
        keep = torch.from_numpy(g.numpy() < np.percentile(g.numpy(), 100 * (1 - f)))
        muted = classifier(features * keep)
        drops.append(probability(task, classifier(features), y) - probability(task, muted, y))
        kept.append(keep)
        examples.append((features, y))
    limit, losses = np.percentile(drops, 100 * (1 - b)), []
    for (features, y), keep, drop in zip(examples, kept, drops, strict=True):
        left = features if drop < limit else features * keep
        losses.append(task.losses(classifier(left).unsqueeze(0), y.unsqueeze(0))[0])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("deep", [False, True], ids=["linear", "deep"])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_loss_and_its_gradient_are_those_of_the_muted_features(kind: str, deep: bool) -> None:
    task = TASKS[kind]
    algorithm = tiny("RSC", task, feature_share=0.4, batch_share=0.25)
    if deep:
        torch.manual_seed(3)
        head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, task.num_outputs))
        algorithm.network.classifier = head.double()
    found = algorithm.objective(algorithm.outputs(tiny_batch(task), 0))
    require_equation(found, brute_force(algorithm, task, 0.4, 0.25), algorithm.network)


@pytest.mark.parametrize("share", [0.0, 0.1, 1 / 3, 0.5, 1.0])
def test_the_largest_are_those_from_a_percentile_on(share: float) -> None:
    values = torch.randn(9, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values[3, 10:] = values[3].amax()  # ties
    limits = np.percentile(values.numpy(), 100 * (1 - share), axis=1, keepdims=True)
    wanted = torch.from_numpy(values.numpy() >= limits - 1e-9)
    assert torch.equal(among_largest(values, share), wanted)
    assert torch.equal(among_largest(values, torch.tensor(share)), wanted), "of many runs' share"
