from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oodbench.algorithms import Batch, Outputs, algorithms
from oodbench.conformance.tiny_problems import LAST
from oodbench.hparams import defaults
from tests.helpers.algorithms.methods import BINARY, objective_of, tiny

RISKS = st.lists(st.floats(0, 10), min_size=2, max_size=6)


@given(RISKS, st.floats(0, 1e4, allow_subnormal=False))
def test_it_is_the_mean_plus_the_population_variance(values: list[float], weight: float) -> None:
    risks = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    found = objective_of("VREx", risks, penalty_weight=weight)
    count, mean = len(values), sum(values) / len(values)
    variance = sum((r - mean) ** 2 for r in values) / count
    assert found.item() == pytest.approx(mean + weight * variance, rel=1e-9, abs=1e-9)
    pairs = sum((a - b) ** 2 for a in values for b in values) / (2 * count**2)
    assert variance == pytest.approx(pairs, abs=1e-9)

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
    values = defaults(algorithms.get(name).Hparams, "small_images")
    risks = torch.tensor([0.3, 0.9], dtype=torch.float64)
    algorithm = tiny(name, BINARY, 2, **values)
    none = torch.empty(0)
    out = Outputs(none, none, none, none, risks, LAST, BINARY, Batch(none, none))
    penalty = (risks[0] - risks[1]) ** 2 if name == "VREx" else (risks[0] - risks[1]).abs()
    code = (risks.sum() + 1e4 * penalty) / 1e4
    torch.testing.assert_close(2 * algorithm.objective(out), code)
    assert 2 * algorithm.rates(LAST).weight_decay == pytest.approx(2 * 1e-3 / 1e4)
    assert weight.items() <= values.items()
