"""CVaR against its definition as a minimum."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.algorithms.methods import objective_of


@pytest.mark.slow
@given(st.lists(st.floats(0, 10), min_size=2, max_size=7), st.floats(0.01, 1))
def test_it_is_the_minimum_over_thresholds(values: list[float], share: float) -> None:
    """min_t t + mean_e max(R_e - t, 0) / share; a piecewise linear function has it at some R_e."""
    found = objective_of("CVaR", torch.tensor(values, dtype=torch.float64), share=share)
    wanted = min(t + sum(max(r - t, 0) for r in values) / len(values) / share for t in values)
    assert found.item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_the_largest_risks_share_the_gradient() -> None:
    risks = torch.tensor([0.1, 0.9, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    worst = objective_of("CVaR", risks, share=0.625)  # two and a half of four
    (gradient,) = torch.autograd.grad(worst, risks)
    assert gradient.tolist() == pytest.approx([0, 0.4, 0.2, 0.4])
