"""EQRM against a root of its equation and finite differences of it."""

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from oodbench.conformance.tiny_problems import LAST, tiny_batch
from tests.helpers.algorithms.methods import BINARY, objective_of, tiny

RISKS = [0.9, 0.3, 0.4, 1.7, 0.35]


def quantile(risks: list[float], level: float) -> float:
    """The quantile of the kernel density, by a root finder."""
    h = bandwidth(risks)
    return float(
        brentq(
            lambda q: sum(norm.cdf((q - r) / h) for r in risks) / len(risks) - level,
            min(risks) - 10 * h,
            max(risks) + 10 * h,
            xtol=1e-14,
        )
    )


def bandwidth(risks: list[float]) -> float:
    mean = sum(risks) / len(risks)
    variance = sum((r - mean) ** 2 for r in risks) / (len(risks) - 1)
    return 1.06 * float(variance**0.5) * float(len(risks) ** -0.2)


@pytest.mark.parametrize("level", [0.02, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("count", [2, 5])
def test_the_quantile_and_its_derivative_are_those_of_the_equation(
    level: float, count: int
) -> None:
    risks = torch.tensor(RISKS[:count], dtype=torch.float64, requires_grad=True)
    found = objective_of("EQRM", risks, quantile=level)
    assert found.item() == pytest.approx(quantile(RISKS[:count], level), rel=1e-11)
    (gradient,) = torch.autograd.grad(found, risks)
    for e in range(count):
        ends = [
            quantile([r + sign * 1e-5 * (i == e) for i, r in enumerate(RISKS[:count])], level)
            for sign in (1, -1)
        ]
        assert gradient[e].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("level", [0.5, 0.75, 0.95])
def test_the_codes_gradient_goes_through_the_ends_of_its_bisection(level: float) -> None:
    """32 halvings between the two ends, differentiated as they stand."""
    ours = torch.tensor(RISKS, dtype=torch.float64, requires_grad=True)
    theirs = torch.tensor(RISKS, dtype=torch.float64, requires_grad=True)
    h = 1.06 * theirs.std() * 5**-0.2
    z = float(norm.ppf(level))
    low, high = theirs.min() + h * z, theirs.max() + h * z
    for _ in range(32):
        middle = (low + high) / 2
        share = sum(norm.cdf((middle.item() - r) / h.item()) for r in RISKS) / 5
        low, high = (low, middle) if share > level else (middle, high)
    found = objective_of("EQRM", ours, quantile=level, bisection_gradient=True)
    wanted = (low + high) / 2
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)
    a, b = torch.autograd.grad(found, ours)[0], torch.autograd.grad(wanted, theirs)[0]
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
    exact = torch.autograd.grad(objective_of("EQRM", ours, quantile=level), ours)[0]
    assert (a - exact).abs().max() > 0.05


def test_a_quantile_below_zero_is_the_mean_and_a_multiple_of_the_bandwidth() -> None:
    found = objective_of("EQRM", torch.tensor(RISKS, dtype=torch.float64), quantile=-50.0)
    assert found.item() == pytest.approx(sum(RISKS) / 5 + 10 * bandwidth(RISKS), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bisection", [False, True])
def test_equal_risks_are_their_own_quantiles(dtype: torch.dtype, bisection: bool) -> None:
    risks = torch.full((4,), 0.7, dtype=dtype, requires_grad=True)
    found = objective_of("EQRM", risks, quantile=0.9, bisection_gradient=bisection)
    (gradient,) = torch.autograd.grad(found, risks)
    assert found.item() == pytest.approx(0.7, rel=1e-6)
    assert gradient.sum().item() == pytest.approx(1, rel=1e-6)


def test_a_quantile_between_risks_that_are_far_apart_stays_between_them() -> None:
    """Of a hundred environments one is an outlier: above the others the density is 0 in float32."""
    risks = torch.linspace(0.5, 0.6, 100)
    risks[-1] = 50.0
    risks.requires_grad_()
    found = objective_of("EQRM", risks, quantile=0.99)
    (gradient,) = torch.autograd.grad(found, risks)
    assert 0.6 < found.item() < 50 and gradient.isfinite().all()


@pytest.mark.parametrize("name", ["EQRM", "RDM"])
@pytest.mark.parametrize("burn_in", [0.25, 5000])
def test_the_burn_in_is_erm_and_then_come_a_new_optimizer_and_another_rate(
    name: str, burn_in: float
) -> None:
    algorithm = tiny(name, burn_in=burn_in, lr=0.1, lr_after=0.003, lr_schedule="constant")
    batch = tiny_batch(BINARY)  # and the run is one of 20,000 steps
    for step, erm in ((0, True), (4999, True), (5000, False), (LAST, False)):
        out = algorithm.outputs(batch, step)
        assert torch.equal(algorithm.objective(out), out.risks.mean()) == erm
        assert algorithm.rates(step).lr == pytest.approx(0.1 if erm else 0.003)
        assert algorithm.rates(step).restart == (step == 5000)
    algorithm.train_step(batch, 4998)
    old = algorithm.optimizers["main"]
    algorithm.train_step(batch, 4999)
    assert algorithm.optimizers["main"] is old
    algorithm.train_step(batch, 5000)
    assert algorithm.optimizers["main"] is not old
