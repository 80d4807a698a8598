"""CORAL, MMD and their two-part forms against their equations, written out by loops."""

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Outputs, algorithms
from oodbench.conformance.tiny_problems import (
    LAST,
    TASKS,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.steps import noise_at, outputs, prepared, update

BINARY = TASKS["binary"]
NAMES = ["CORAL", "MMD", "CausIRL_CORAL", "CausIRL_MMD"]


def coral(x: Tensor, y: Tensor) -> Tensor:
    """Of two sets of vectors, example by example."""
    means = (x.mean(0) - y.mean(0)).square().mean()
    return means + (covariance(x) - covariance(y)).square().mean()


def covariance(x: Tensor) -> Tensor:
    products = [torch.outer(v - x.mean(0), v - x.mean(0)) for v in x]
    return torch.stack(products).sum(0) / (len(x) - 1)


def kernel(a: Tensor, b: Tensor) -> Tensor:
    distance = (a - b).square().sum()
    return sum((torch.exp(-(10.0**p) * distance) for p in range(-3, 4)), torch.zeros(()))


def mmd(x: Tensor, y: Tensor) -> Tensor:
    def mean(left: Tensor, right: Tensor) -> Tensor:
        return torch.stack([kernel(a, b) for a in left for b in right]).mean()

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def brute(name: str, out: Outputs) -> Tensor:
    distance = mmd if name.endswith("MMD") else coral
    if name.startswith("CausIRL"):
        assert out.batch is not None
        cuts = out.batch.noise["cut"].tolist()
        first = [x for e, cut in enumerate(cuts) for x in out.features[e][:cut]]
        other = [x for e, cut in enumerate(cuts) for x in out.features[e][cut:]]
        return distance(torch.stack(first), torch.stack(other))
    pairs = [distance(x, y) for x, y in combinations(out.features, 2)]
    return torch.stack(pairs).mean()


def made(name: str, environments: int = 5, examples: int = 6, **values: object) -> tuple[Any, Any]:
    """A method and what its objective is given at a step."""
    problem = tiny_problem(BINARY, tuple("abcdefgh"[:environments]))
    algorithm = tiny_algorithm(algorithms.get(name), problem, values)
    batch = prepared(algorithm, tiny_batch(BINARY, 3, environments, examples), LAST)
    return algorithm, outputs(algorithm, batch, LAST)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(2, 9), (2, 3), (4, 2)])  # of 8 features
def test_the_penalty_and_its_gradient_are_those_of_the_equation(
    name: str, sizes: tuple[int, int]
) -> None:
    algorithm, out = made(name, *sizes, penalty_weight=0.7)
    assert out.batch is not None
    out.batch.noise["cut"] = torch.arange(1, sizes[0] + 1).clamp(max=sizes[1] - 1)
    found = algorithm.objective(out)
    wanted = out.risks.mean() + 0.7 * brute(name, out)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    trained = list(algorithm.parameters())
    ours = torch.autograd.grad(found, trained, retain_graph=True)
    for a, b in zip(ours, torch.autograd.grad(wanted, trained), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["CORAL", "MMD"])
def test_environments_with_the_same_features_have_no_penalty(name: str) -> None:
    algorithm, out = made(name)
    out.features.data[:] = out.features.data[0]
    assert algorithm.distance(out).item() == pytest.approx(0, abs=1e-13)
    out.features.data[1] += 1
    assert algorithm.distance(out).item() > 1e-3


def test_a_shift_of_the_features_costs_its_square() -> None:
    """Of means alone: |c|^2 / F for one of two environments shifted by c."""
    algorithm, out = made("CORAL", 2)
    out.features.data[1] = out.features.data[0] + torch.arange(8.0)
    wanted = torch.arange(8.0).square().mean().item()
    assert algorithm.distance(out).item() == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["CausIRL_CORAL", "CausIRL_MMD"])
@pytest.mark.parametrize("cuts", [[0, 0, 0], [1, 0, 0], [6, 6, 5]])
def test_a_part_of_fewer_than_two_has_no_penalty(name: str, cuts: list[int]) -> None:
    algorithm, out = made(name, 3)
    assert out.batch is not None
    out.batch.noise["cut"] = torch.tensor(cuts)
    loss = algorithm.objective(out)
    assert torch.equal(loss, out.risks.mean())
    gradients = torch.autograd.grad(loss, list(algorithm.parameters()))
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("name", ["CausIRL_CORAL", "CausIRL_MMD"])
@pytest.mark.parametrize("cuts", [[1, 1, 0], [6, 5, 5]])
def test_a_part_of_two_has_a_penalty(name: str, cuts: list[int]) -> None:
    algorithm, out = made(name, 3)
    assert out.batch is not None
    out.batch.noise["cut"] = torch.tensor(cuts)
    assert algorithm.distance(out) > 0


def test_a_cut_may_fall_before_any_example() -> None:
    algorithm, _ = made("CausIRL_MMD")
    batch = tiny_batch(BINARY)
    cuts = torch.stack([noise_at(algorithm, batch, step)["cut"] for step in range(400)])
    counts = torch.bincount(cuts.flatten(), minlength=6)
    assert len(counts) == 6 and 270 < counts.min() and counts.max() < 400  # 333 expected


def test_features_that_are_far_apart_stay_finite_in_float32() -> None:
    algorithm, out = made("MMD")
    features = (1e4 * out.features.detach()).float().requires_grad_()
    distance = algorithm.distance(Outputs(**{**vars(out), "features": features}))
    (gradient,) = torch.autograd.grad(distance, features)
    assert distance.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_one_environment_is_erms_or_finite(name: str) -> None:
    problem = tiny_problem(BINARY)
    algorithm = tiny_algorithm(algorithms.get(name), problem, {"environments_per_step": 1})
    loss = update(algorithm, tiny_batch(BINARY), LAST)["loss"]
    assert loss.isfinite()
