"""GGA's search against a walk written out, with a backward pass of every environment."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from oodbench.conformance.tiny_problems import PLAIN, STEPS, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    ON_EVERY_TASK,
    gradient,
    require_same_weights,
    risks_of,
    tiny,
)

EARLY: dict[str, Any] = {"start": 0, "end": 0.5}


def agreement(network: nn.Module, task: Task) -> tuple[float, float]:
    """The smallest cosine of two environments' gradients, and the mean risk."""
    risks = risks_of(network, task, tiny_batch(task))
    slopes = [gradient(risk, network.parameters()) for risk in risks]
    cosines = [torch.cosine_similarity(a, b, 0) for a, b in itertools.combinations(slopes, 2)]
    return float(min(cosines)), float(risks.detach().mean())


def searched(network: nn.Module, task: Task, seed: int, radius: float, trials: int) -> Tensor:
    """The featurizer's best weights, (P,), by the authors' walk."""
    network, generator = copy.deepcopy(network), torch.Generator().manual_seed(seed)
    featurizer: nn.Module = network.featurizer  # type: ignore[assignment]
    start = best = parameters_to_vector(featurizer.parameters()).detach()
    (most, loss), now = agreement(network, task), start
    for _ in range(trials):
        shapes = [p.shape for p in featurizer.parameters()]
        noise = [2 * torch.rand(s, generator=generator).double() - 1 for s in shapes]
        now = now + radius * torch.cat([n.flatten() for n in noise])
        vector_to_parameters(now, featurizer.parameters())
        cosine, risk = agreement(network, task)
        if cosine > most and risk < loss + 0.1:
            most, loss, best, now = cosine, risk, now, start
    return best


@pytest.mark.parametrize("radius", [1e-3, 0.1])
@ON_EVERY_TASK
def test_an_early_update_is_erms_at_the_weights_that_the_walk_finds(
    task: Task, radius: float
) -> None:
    algorithm = tiny("GGA", task, **PLAIN, **EARLY, radius=radius, search=12)
    seed = int(algorithm.noise_at(tiny_batch(task), 0)["seed"])
    erm = tiny("ERM", task, **PLAIN)
    best = searched(algorithm.network, task, seed, radius, 12)
    vector_to_parameters(best, erm.network.featurizer.parameters())
    for method in (algorithm, erm):
        method.train_step(tiny_batch(task), 0)
    require_same_weights(algorithm.network, erm.network, rtol=0, atol=1e-10)


def test_the_search_is_from_its_start_to_its_end() -> None:
    task = Task("binary")
    for step in (0, STEPS // 50, STEPS // 25 + 1):
        algorithm, erm = tiny("GGA", task, **PLAIN, radius=0.1), tiny("ERM", task, **PLAIN)
        for method in (algorithm, erm):
            method.train_step(tiny_batch(task), step)
        same = torch.equal(*(m.network.classifier.weight for m in (algorithm, erm)))
        assert same == (not STEPS // 50 <= step <= STEPS // 25)
