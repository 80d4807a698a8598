"""Methods of the environments' risks against their equations: REx, RI, CVaR, EQRM, RDM and GroupDRO."""

import statistics
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import LAST, PLAIN, TASKS, tiny_batch
from oodbench.hparams import defaults
from tests.helpers.algorithms.methods import (
    BINARY,
    descend,
    objective_of,
    require_equation,
    require_same_weights,
    tiny,
)

RISKS = st.lists(st.floats(0, 10), min_size=2, max_size=6)


@given(RISKS, st.floats(0, 1e4, allow_subnormal=False))
def test_v_rex_is_the_mean_plus_the_population_variance(values: list[float], weight: float) -> None:
    risks = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    found = objective_of("VREx", risks, penalty_weight=weight)
    count, mean = len(values), sum(values) / len(values)
    variance = sum((r - mean) ** 2 for r in values) / count
    assert found.item() == pytest.approx(mean + weight * variance, rel=1e-9, abs=1e-9)
    (gradient,) = torch.autograd.grad(found, risks)
    wanted = [1 / count + weight * 2 * (r - mean) / count for r in values]
    assert gradient.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("weight", "divisor"), [(0.5, 1.0), (1.0, 1.0), (2e4, 1e4)])
def test_the_weight_is_the_initial_one_until_the_switch_and_divides_everything_after(
    weight: float, divisor: float
) -> None:
    risks = torch.tensor([0.2, 0.7, 1.5]).double()
    values: dict[str, Any] = {"penalty_weight": weight, "anneal_steps": 5}
    values |= {"divide_by_weight": True, "initial_weight": 2.0}
    mean, variance = risks.mean(), risks.var(correction=0)
    torch.testing.assert_close(objective_of("VREx", risks, 4, **values), mean + 2 * variance)
    after = (mean + weight * variance) / divisor
    torch.testing.assert_close(objective_of("VREx", risks, 5, **values), after)

    algorithm = tiny("VREx", **values, weight_decay=0.1)
    assert algorithm.rates(4).weight_decay == pytest.approx(0.1)
    assert algorithm.rates(5).weight_decay == pytest.approx(0.1 / divisor)


@pytest.mark.parametrize(("name", "weight"), [("VREx", {"penalty_weight": 2e4}), ("MMREx", {})])
def test_the_defaults_on_small_images_are_those_of_the_papers_code(
    name: str, weight: dict[str, float]
) -> None:
    """R_1 + R_2 + 1e-3 ||theta||^2 + 1e4 (R_1 - R_2)^2, or 1e4 |R_1 - R_2|, all divided by 1e4."""
    values: Any = defaults(algorithms.get(name).Hparams, "small_images")
    risks = torch.tensor([0.3, 0.9], dtype=torch.float64)
    algorithm = tiny(name, BINARY, 2, **values)
    penalty = (risks[0] - risks[1]) ** 2 if name == "VREx" else (risks[0] - risks[1]).abs()
    code = (risks.sum() + 1e4 * penalty) / 1e4
    torch.testing.assert_close(2 * objective_of(name, risks, **values), code)
    assert 2 * algorithm.rates(LAST).weight_decay == pytest.approx(2 * 1e-3 / 1e4)
    assert weight.items() <= values.items()


@given(RISKS, st.integers(0, 100), st.integers(0, 100))
def test_mm_rex_is_the_worst_corner_of_the_simplex(
    values: list[float], percent: int, beyond: int
) -> None:
    """The maximum of a linear function over a simplex lies at one of its corners."""
    lambda_min = percent / 100 / len(values) - beyond
    risks = torch.tensor(values, dtype=torch.float64)
    found = objective_of("MMREx", risks, lambda_min=lambda_min).item()
    count = len(values)
    corners = lambda_min + (1 - count * lambda_min) * np.eye(count)
    assert found == pytest.approx(max(corners @ values), rel=1e-9, abs=1e-9)


@given(RISKS)
def test_risk_interpolation_is_the_largest_risk(values: list[float]) -> None:
    risks = torch.tensor(values, dtype=torch.float64)
    assert objective_of("RI", risks).item() == max(values)


def test_the_environments_of_a_step_count() -> None:
    values = {"environments_per_step": 2, "anneal_steps": 0}
    assert tiny("MMREx", BINARY, 8, **values, lambda_min=-1.0).weight(5) == 3
    tiny("MMREx", BINARY, 8, **values, lambda_min=0.5)


@pytest.mark.slow
@given(st.lists(st.floats(0, 10), min_size=2, max_size=7), st.floats(0.01, 1))
def test_cvar_is_the_minimum_over_thresholds(values: list[float], share: float) -> None:
    """min_t t + mean_e max(R_e - t, 0) / share; a piecewise linear function has it at some R_e."""
    found = objective_of("CVaR", torch.tensor(values, dtype=torch.float64), share=share)
    wanted = min(t + sum(max(r - t, 0) for r in values) / len(values) / share for t in values)
    assert found.item() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_the_largest_risks_share_the_gradient() -> None:
    risks = torch.tensor([0.1, 0.9, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    worst = objective_of("CVaR", risks, share=0.625)  # two and a half of four
    (gradient,) = torch.autograd.grad(worst, risks)
    assert gradient.tolist() == pytest.approx([0, 0.4, 0.2, 0.4])


SAMPLE = [0.9, 0.3, 0.4, 1.7, 0.35]


def quantile(risks: list[float], level: float) -> float:
    """The quantile of the kernel density, by a root finder."""
    h = bandwidth(risks)

    def above(q: float) -> float:
        return float(norm.cdf((q - np.array(risks)) / h).mean()) - level

    return float(brentq(above, min(risks) - 10 * h, max(risks) + 10 * h, xtol=1e-14))


def bandwidth(risks: list[float]) -> float:
    return 1.06 * statistics.stdev(risks) * float(len(risks) ** -0.2)


@pytest.mark.parametrize("level", [0.02, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("count", [2, 5])
def test_the_quantile_and_its_derivative_are_those_of_the_equation(
    level: float, count: int
) -> None:
    risks = torch.tensor(SAMPLE[:count], dtype=torch.float64, requires_grad=True)
    found = objective_of("EQRM", risks, quantile=level)
    assert found.item() == pytest.approx(quantile(SAMPLE[:count], level), rel=1e-11)
    (gradient,) = torch.autograd.grad(found, risks)
    for e in range(count):
        ends = [
            quantile([r + sign * 1e-5 * (i == e) for i, r in enumerate(SAMPLE[:count])], level)
            for sign in (1, -1)
        ]
        assert gradient[e].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


@pytest.mark.parametrize("level", [0.5, 0.75, 0.95])
def test_the_codes_gradient_goes_through_the_ends_of_its_bisection(level: float) -> None:
    """32 halvings between the two ends, differentiated as they stand."""
    ours = torch.tensor(SAMPLE, dtype=torch.float64, requires_grad=True)
    theirs = torch.tensor(SAMPLE, dtype=torch.float64, requires_grad=True)
    h = 1.06 * theirs.std() * 5**-0.2
    z = float(norm.ppf(level))
    low, high = theirs.min() + h * z, theirs.max() + h * z
    for _ in range(32):
        middle = (low + high) / 2
        share = sum(norm.cdf((middle.item() - r) / h.item()) for r in SAMPLE) / 5
        low, high = (low, middle) if share > level else (middle, high)
    found = objective_of("EQRM", ours, quantile=level, bisection_gradient=True)
    wanted = (low + high) / 2
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)
    a, b = torch.autograd.grad(found, ours)[0], torch.autograd.grad(wanted, theirs)[0]
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
    exact = torch.autograd.grad(objective_of("EQRM", ours, quantile=level), ours)[0]
    assert (a - exact).abs().max() > 0.05


def test_a_quantile_below_zero_is_the_mean_and_a_multiple_of_the_bandwidth() -> None:
    found = objective_of("EQRM", torch.tensor(SAMPLE, dtype=torch.float64), quantile=-50.0)
    assert found.item() == pytest.approx(sum(SAMPLE) / 5 + 10 * bandwidth(SAMPLE), rel=1e-12)


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


def mean_kernel(left: Tensor, right: Tensor) -> Tensor:
    squares = (left[:, None] - right).square()
    return torch.stack([(-(10.0**p) * squares).exp() for p in range(-4, 4)]).sum(0).mean()


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_rdm_and_its_gradient_are_those_of_the_equation(kind: str) -> None:
    task = TASKS[kind]
    algorithm = tiny("RDM", task, penalty_weight=3.0, variance_weight=0.2)
    out = algorithm.outputs(tiny_batch(task, 4), LAST)
    risks = out.risks.tolist()
    worst, every = out.losses[risks.index(max(risks))], out.losses.flatten()
    mmd = mean_kernel(worst, worst) + mean_kernel(every, every) - 2 * mean_kernel(worst, every)
    variances = worst.var(correction=1) + every.var(correction=1)
    wanted = out.risks.mean() + 3 * mmd + 0.2 * variances
    require_equation(algorithm.objective(out), wanted, algorithm)


def test_a_single_example_has_no_variance_and_two_have_the_unbiased_one() -> None:
    task = TASKS["regression"]
    algorithm = tiny("RDM", task, 2, penalty_weight=0.0, variance_weight=1.0)
    out = algorithm.outputs(tiny_batch(task, environments=2, examples=1), LAST)
    first, second = out.losses.flatten().tolist()
    algorithm.objective(out)
    assert out.metrics["penalty"].item() == pytest.approx((first - second) ** 2 / 2)


@pytest.mark.parametrize(("over", "count"), [("environments", 2), ("groups", 6)])
def test_three_steps_of_group_dro_are_those_of_the_paper(over: str, count: int) -> None:
    """q_e <- q_e exp(eta R_e) / S, then a step on sum_e q_e R_e with q held fixed.

    Groups are pairs of target and attribute, and one that is not in the batch has the risk 0.
    """
    task, values = TASKS["multiclass"], {**PLAIN, "eta": 0.7, "over": over}
    algorithm, twin = (tiny("GroupDRO", task, 2, **values) for _ in range(2))
    q = torch.full((count,), 1 / count, dtype=torch.float64)
    for step in range(3):
        batch: Any = tiny_batch(task, seed=step, environments=2, examples=4)
        member = torch.arange(2).unsqueeze(1).expand(2, 4)
        if over == "groups":
            member = 2 * batch.y + batch.attributes
        losses = twin.outputs(batch, step).losses
        here = [losses[member == g] for g in range(count)]
        assert over == "environments" or step or any(not len(each) for each in here)
        risks = torch.stack([each.sum() / max(1, len(each)) for each in here])
        q = q * (0.7 * risks.detach()).exp()
        q = q / q.sum()
        descend(twin, (q * risks).sum())
        loss = algorithm.train_step(batch, step)["loss"]
        torch.testing.assert_close(loss, (q * risks.detach()).sum())
        torch.testing.assert_close(algorithm.weights, q)
    require_same_weights(algorithm, twin)


def test_environments_that_are_not_drawn_keep_their_share() -> None:
    algorithm, part = tiny("GroupDRO", eta=1.0), tiny_batch(BINARY).of([3, 1])
    risks = algorithm.outputs(part, 0).risks.detach()
    algorithm.train_step(part, 0)
    factors = torch.ones(5, dtype=torch.float64)
    factors[[3, 1]] = risks.exp()
    torch.testing.assert_close(algorithm.weights, factors / factors.sum())


def test_groups_of_real_targets_are_attributes() -> None:
    algorithm = tiny("GroupDRO", TASKS["regression"], over="groups")
    batch: Any = tiny_batch(TASKS["regression"])
    out = algorithm.outputs(batch, 0)
    for g in range(2):
        wanted = out.losses[batch.attributes == g].mean()
        torch.testing.assert_close(algorithm.group_risks(out)[g], wanted)
