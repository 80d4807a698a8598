"""ADRMX beside its terms, summed example by example."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
from tests.helpers.algorithms.methods import gradient, tiny

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
    parts = {
        "featurizers": ([*network.parameters(), *algorithm.of_environment.parameters()], -0.6),
        "discriminator": (list(algorithm.discriminator.parameters()), 1.0),
    }
    for parameters, sign in parts.values():
        theirs = gradient(wanted + sign * adversarial, parameters)
        torch.testing.assert_close(gradient(found, parameters), theirs)


def test_both_featurizers_start_alike_only_where_they_are_pretrained() -> None:
    algorithm = tiny("ADRMX")
    assert algorithm.problem.pretrained
    pairs = zip(
        algorithm.network.featurizer.parameters(),
        algorithm.of_environment.parameters(),
        strict=True,
    )
    assert all(torch.equal(p, q) for p, q in pairs)
