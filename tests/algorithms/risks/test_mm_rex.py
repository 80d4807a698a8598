from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.algorithms.risks.test_vrex import RISKS
from tests.helpers.algorithms.methods import BINARY, objective_of, tiny


def brute_force(risks: list[float], lambda_min: float) -> float:
    """The maximum of a linear function over a simplex lies at one of its corners."""
    count = len(risks)
    corners = []
    for favoured in range(count):
        weights = [lambda_min] * count
        weights[favoured] = 1 - (count - 1) * lambda_min
        assert sum(weights) == pytest.approx(1)
        corners.append(sum(w * r for w, r in zip(weights, risks, strict=True)))
    return max(corners)


@given(RISKS, st.integers(0, 100), st.integers(0, 100))
def test_it_is_the_worst_corner_of_the_simplex(
    values: list[float], percent: int, beyond: int
) -> None:
    lambda_min = percent / 100 / len(values) - beyond
    risks = torch.tensor(values, dtype=torch.float64)
    found = objective_of("MMREx", risks, lambda_min=lambda_min).item()
    assert found == pytest.approx(brute_force(values, lambda_min), rel=1e-9, abs=1e-9)


@given(RISKS)
def test_risk_interpolation_is_the_largest_risk(values: list[float]) -> None:
    risks = torch.tensor(values, dtype=torch.float64)
    assert objective_of("RI", risks).item() == max(values)


def test_only_the_worst_environment_pulls() -> None:
    risks = torch.tensor([0.3, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(objective_of("RI", risks), risks)
    assert gradient.tolist() == [0, 1, 0]
    (gradient,) = torch.autograd.grad(objective_of("MMREx", risks, lambda_min=-2.0), risks)
    assert gradient.tolist() == pytest.approx([-2, 5, -2])


def test_it_interpolates_before_the_switch_and_divides_after_it() -> None:
    risks = torch.tensor([0.3, 0.9], dtype=torch.float64)
    values: dict[str, Any] = {"lambda_min": -4999.5, "anneal_steps": 100, "divide_by_weight": True}
    assert objective_of("MMREx", risks, 99, **values).item() == pytest.approx(0.9)
    after = (0.6 + 1e4 * 0.3) / 1e4
    assert objective_of("MMREx", risks, 100, **values).item() == pytest.approx(after)


def test_the_environments_of_a_step_count() -> None:
    values = {"environments_per_step": 2, "anneal_steps": 0}
    assert tiny("MMREx", BINARY, 8, **values, lambda_min=-1.0).weight(5) == 3
    tiny("MMREx", BINARY, 8, **values, lambda_min=0.5)
