import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Problem, algorithms
from oodbench.networks import build
from oodbench.tasks import Task
from oodbench.tiny import TASKS, tiny_algorithm, tiny_problem

ANDMASK: Any = algorithms.get("ANDMask")


def and_mask(environments: int = 5, **values: object) -> Algorithm:
    names = tuple(f"e{i}" for i in range(environments))
    return tiny_algorithm(ANDMASK, tiny_problem(TASKS["binary"], names), values)


def random_gradients(environments: int) -> Tensor:
    """(E, 15, 20), a tenth of them zero."""
    generator = torch.Generator().manual_seed(environments)
    values = torch.randn(environments, 15, 20, generator=generator, dtype=torch.float64)
    return values * (torch.rand(values.shape, generator=generator) > 0.1)


def plain_loop(gradients: Tensor, tau: Fraction, rescale: bool, geometric: bool) -> Tensor:
    """The definition, component by component; the threshold in exact arithmetic."""
    count = len(gradients)
    combined, kept = [], 0
    for column in gradients.flatten(1).T.tolist():
        net = sum(g > 0 for g in column) - sum(g < 0 for g in column)
        keep = Fraction(abs(net), count) >= tau
        kept += keep
        mean = sum(column) / count
        if geometric:
            magnitude = math.exp(sum(math.log(abs(g) + 1e-10) for g in column) / count)
            mean = math.copysign(magnitude, mean) if mean else 0.0
        combined.append(mean if keep else 0.0)
    factor = 1 / (1e-10 + kept / len(combined)) if rescale else 1.0
    return (torch.tensor(combined, dtype=torch.float64) * factor).view(gradients.shape[1:])


@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("environments", [2, 3, 4, 5])
def test_it_is_the_definition_in_every_component(
    environments: int, rescale: bool, geometric: bool
) -> None:
    gradients = random_gradients(environments)
    for level in range(environments + 1):
        tau = Fraction(level, environments)
        values = {"tau": float(tau), "rescale": rescale, "geometric_mean": geometric}
        found = and_mask(environments, **values).combine(gradients)
        wanted = plain_loop(gradients, tau, rescale, geometric)
        assert torch.equal(found == 0, wanted == 0)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-15)


@pytest.mark.parametrize("environments", [7, 49, 80])
def test_thresholds_on_a_boundary_are_counted_in_environments(environments: int) -> None:
    for net in range(environments % 2, environments + 1, 2):
        positive = (environments + net) // 2
        gradients = torch.ones(environments, 1)
        gradients[positive:] = -1
        kept = {"tau": net / environments, "rescale": False, "geometric_mean": True}
        assert and_mask(environments, **kept).combine(gradients).item() != 0 or net == 0
        if net < environments:
            above = {**kept, "tau": (net + 1) / environments}
            assert and_mask(environments, **above).combine(gradients).item() == 0


def test_round_off_in_the_threshold_masks_nothing() -> None:
    assert 0.14 * 100 > 14
    gradients = torch.ones(100, 1, dtype=torch.float64)
    gradients[57:] = -1
    assert and_mask(100, tau=0.14).combine(gradients).item() == pytest.approx(0.14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fully_masked_tensor_is_zero(dtype: torch.dtype) -> None:
    found = and_mask(2).combine(torch.tensor([[1.0, -2.0], [-1.0, 2.0]], dtype=dtype))
    assert found.tolist() == [0, 0]
    assert found.dtype == dtype


def test_each_tensor_is_rescaled_by_what_it_kept() -> None:
    gradients = torch.tensor([[1.0, 1.0, 1.0, 1.0], [3.0, -1.0, 5.0, -1.0]]).double()
    found = and_mask(2).combine(gradients)
    torch.testing.assert_close(found, torch.tensor([4.0, 0.0, 6.0, 0.0]).double())


def test_the_decay_of_a_masked_weight_enters_adams_moments() -> None:
    """So a weight whose gradients all disagree moves by lr * sign(w), whatever the decay."""
    problem = Problem((3,), Task("regression"), ("up", "down"), 100)
    x = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    y = torch.stack([torch.full((3, 1), 10.0), torch.full((3, 1), -10.0)]).double()
    for decay in (1e-3, 1e-2):
        hparams = ANDMASK.Hparams(lr=0.01, weight_decay=decay, batch_size=0)
        network = build("Linear", {}, (3,), 1, 0)
        algorithm = ANDMASK(network, problem, hparams).double()
        algorithm.optimizers = algorithm.configure()
        phi = network.get_parameter("featurizer.1.weight")
        algorithm.update(Batch(x, y), 0)
        assert phi.grad is not None and (phi.grad == 0).all()
        wanted = torch.eye(3, dtype=torch.float64) * (1 - 0.01)
        torch.testing.assert_close(phi.detach(), wanted, rtol=0, atol=1e-6)


def descend(algorithm: Algorithm, environments: list[int], seed: int) -> Tensor:
    """Gradient descent on the linear example of the released notebook; theta (5,) at its end.

    Environment i has the one example x = 3 e_i + 0.3 e_5 with y = 1 and the loss (x theta - y)^2 / 2.
    """
    x = torch.cat([3 * torch.eye(4), torch.full((4, 1), 0.3)], 1).double()[environments]
    generator = torch.Generator().manual_seed(seed)
    theta = 0.1 * torch.randn(5, generator=generator, dtype=torch.float64)
    for step in range(1, 1002):
        lr = 0.3 * 0.9995**step
        residual = x @ theta - 1
        theta = theta - lr * algorithm.combine(residual.unsqueeze(1) * x)
        theta = theta - 0.01 * lr * theta
    return theta


@pytest.mark.parametrize("seed", range(3))
def test_the_patchwork_and_the_invariant_solution(seed: int) -> None:
    """The optima that the notebook prints: its starting points are its own, hence the ranges."""
    mean = and_mask(4, tau=0.0)
    everywhere = torch.tensor([0.31931, 0.31931, 0.31931, 0.31931, 0.12607]).double()
    torch.testing.assert_close(descend(mean, [0, 1, 2, 3], seed), everywhere, atol=0.02, rtol=0)
    first_two = descend(mean, [0, 1], seed)
    torch.testing.assert_close(first_two[:2], torch.full((2,), 0.326).double(), atol=0.01, rtol=0)

    for geometric in (False, True):
        masked = and_mask(4, rescale=False, geometric_mean=geometric)
        for environments in ([0, 1, 2, 3], [0, 1], [2, 3]):
            theta = descend(masked, environments, seed)
            assert theta[:4].abs().max() < 0.05
            assert 2.7 < theta[4] < 1 / 0.3


def test_one_environment_is_refused() -> None:
    assert "at least two" in ANDMASK.skip(tiny_problem(TASKS["binary"], ("a",)))
