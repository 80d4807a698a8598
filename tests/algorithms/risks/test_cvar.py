"""CVaR against its definition as a minimum."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodbench.algorithms import Outputs, algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_problem

CVAR: Any = algorithms.get("CVaR")


def objective(risks: torch.Tensor, share: float) -> torch.Tensor:
    names = tuple(f"e{i}" for i in range(len(risks)))
    algorithm = tiny_algorithm(CVAR, tiny_problem(TASKS["binary"], names), {"share": share})
    none = torch.empty(0)
    return algorithm.objective(Outputs(none, none, none, none, risks, 0, TASKS["binary"]))


@given(st.lists(st.floats(0, 10), min_size=2, max_size=7), st.floats(0.01, 1))
def test_it_is_the_minimum_over_thresholds(values: list[float], share: float) -> None:
    """min_t t + mean_e max(R_e - t, 0) / share; a piecewise linear function has it at some R_e."""
    found = objective(torch.tensor(values, dtype=torch.float64), share)
    wanted = min(t + sum(max(r - t, 0) for r in values) / len(values) / share for t in values)
    assert found.item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_the_largest_risks_share_the_gradient() -> None:
    risks = torch.tensor([0.1, 0.9, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(objective(risks, 0.625), risks)  # two and a half of four
    assert gradient.tolist() == pytest.approx([0, 0.4, 0.2, 0.4])


def test_at_a_small_share_it_is_the_worst_risk() -> None:
    risks = torch.tensor([0.1, 0.9, 0.5])
    assert objective(risks, 1 / 3).item() == pytest.approx(0.9)
    assert objective(risks, 1e-6).item() == pytest.approx(0.9)
