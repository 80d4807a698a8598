"""CORAL, MMD and their two-part forms against their equations, written out by loops."""

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Outputs
from oodbench.conformance.tiny_problems import LAST, tiny_batch
from tests.helpers.algorithms.methods import BINARY, require_equation, tiny

NAMES = ["CORAL", "MMD", "CausIRL_CORAL", "CausIRL_MMD"]


def coral(x: Tensor, y: Tensor) -> Tensor:
    """Of two sets of vectors."""
    means = (x.mean(0) - y.mean(0)).square().mean()
    return means + (torch.cov(x.T) - torch.cov(y.T)).square().mean()


def mmd(x: Tensor, y: Tensor) -> Tensor:
    def mean(left: Tensor, right: Tensor) -> Tensor:
        distances = torch.stack([(a - b).square().sum() for a in left for b in right])
        return torch.stack([(-(10.0**p) * distances).exp() for p in range(-3, 4)]).sum(0).mean()

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def brute(name: str, out: Outputs) -> Tensor:
    distance = mmd if name.endswith("MMD") else coral
    if name.startswith("CausIRL"):
        cuts = out.batch.noise["cut"].tolist()
        first = [x for e, cut in enumerate(cuts) for x in out.features[e][:cut]]
        other = [x for e, cut in enumerate(cuts) for x in out.features[e][cut:]]
        return distance(torch.stack(first), torch.stack(other))
    pairs = [distance(x, y) for x, y in combinations(out.features, 2)]
    return torch.stack(pairs).mean()


def made(name: str, environments: int = 5, examples: int = 6, **values: object) -> tuple[Any, Any]:
    """A method and what its objective is given at a step."""
    algorithm = tiny(name, BINARY, environments, **values)
    batch = algorithm.prepared(tiny_batch(BINARY, 3, environments, examples), LAST)
    return algorithm, algorithm.outputs(batch, LAST)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(2, 9), (2, 3), (4, 2)])  # of 8 features
def test_the_penalty_and_its_gradient_are_those_of_the_equation(
    name: str, sizes: tuple[int, int]
) -> None:
    algorithm, out = made(name, *sizes, penalty_weight=0.7)
    out.batch.noise["cut"] = torch.arange(1, sizes[0] + 1).clamp(max=sizes[1] - 1)
    wanted = out.risks.mean() + 0.7 * brute(name, out)
    require_equation(algorithm.objective(out), wanted, algorithm)


@pytest.mark.parametrize("name", ["CausIRL_CORAL", "CausIRL_MMD"])
@pytest.mark.parametrize("cuts", [[0, 0, 0], [1, 0, 0], [6, 6, 5], [1, 1, 0], [6, 5, 5]], ids=str)
def test_two_examples_have_a_penalty_and_fewer_have_none(name: str, cuts: list[int]) -> None:
    algorithm, out = made(name, 3)
    out.batch.noise["cut"] = torch.tensor(cuts)
    loss = algorithm.objective(out)
    assert torch.equal(loss, out.risks.mean()) == (not 2 <= sum(cuts) <= 16)
    gradients = torch.autograd.grad(loss, list(algorithm.parameters()))
    assert all(g.isfinite().all() for g in gradients)


def test_a_cut_may_fall_before_any_example() -> None:
    algorithm, _ = made("CausIRL_MMD")
    batch = tiny_batch(BINARY)
    cuts = torch.stack([algorithm.noise_at(batch, step)["cut"] for step in range(400)])
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
    algorithm = tiny(name, environments_per_step=1)
    assert algorithm.train_step(tiny_batch(BINARY), LAST)["loss"].isfinite()
