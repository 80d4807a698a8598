"""GAF and GGA against walks written out, with a backward pass of every micro-batch and environment."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from oodbench.algorithms import Batch
from oodbench.conformance.tiny_problems import PLAIN, STEPS, tiny_batch
from oodbench.errors import UserError
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    gradient,
    require_same_weights,
    risks_of,
    tiny,
)


def step_gaf(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    task: Task,
    batches: list[tuple[Tensor, Tensor]],
    threshold: float,
    equal: bool,
) -> list[float]:
    """The authors' step; returns the weights of the micro-batches' gradients."""
    parameters, current, weights = list(network.parameters()), torch.empty(0), list[float]()
    for x, y in batches:
        new = gradient(task.losses(network(x), y).mean(), parameters)
        if not weights:
            current, weights = new, [1.0]
            continue
        distance = 1 - current @ new / (current.norm() * new.norm())
        share = 0.0 if distance > threshold else 1 / (1 + sum(w > 0 for w in weights))
        share = share if equal or not share else 0.5
        current = (1 - share) * current + share * new
        weights = [(1 - share) * w for w in weights] + [share]
    if any(weights[1:]):
        places = torch.split(current, [p.numel() for p in parameters])
        for p, g in zip(parameters, places, strict=True):
            p.grad = g.view_as(p)
        optimizer.step()
    return weights


def pieces(batch: Batch, count: int) -> list[tuple[Tensor, Tensor]]:
    """Micro-batches with an equal share of every environment; 0: the environments."""
    if not count:
        return batch.minibatches()
    split = zip(batch.x.chunk(count, 1), batch.y.chunk(count, 1), strict=True)
    return [(x.flatten(0, 1), y.flatten(0, 1)) for x, y in split]


@pytest.mark.parametrize(("count", "equal"), [(2, False), (3, False), (3, True), (0, False)])
@ON_EVERY_TASK
def test_six_updates_are_those_of_the_authors_loop(task: Task, count: int, equal: bool) -> None:
    """With momentum and decay, which a step without agreement leaves out, too."""
    optimizer: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
    values = {**PLAIN, **optimizer, "micro_batches": count, "equal_weights": equal}
    algorithm = tiny("GAF", task, **values, threshold=0.9)
    network = copy.deepcopy(algorithm.network)
    theirs, weights = torch.optim.SGD(network.parameters(), **optimizer), []
    for step in range(6):
        batch = tiny_batch(task, step)
        if task.kind == "multilabel":
            batch = Batch(batch.x, batch.y.nan_to_num())
        weights.append(step_gaf(network, theirs, task, pieces(batch, count), 0.9, equal))
        metrics = algorithm.train_step(batch, step)
        agreed = sum(w > 0 for w in weights[-1]) - 1
        assert float(metrics["agreed"]) == pytest.approx(agreed / (len(weights[-1]) - 1))
        require_same_weights(algorithm.network, network, rtol=0, atol=1e-8)
    every = [w for step in weights for w in step[1:]]
    assert 0.0 in every and any(every)


def test_one_micro_batch_is_refused() -> None:
    with pytest.raises(UserError, match="GAF: a step needs at least two micro-batches"):
        tiny("GAF", micro_batches=1).train_step(tiny_batch(BINARY), 0)


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
