import pytest
import torch

from oodbench.verify.computations import rex
from oodbench.verify.computations.rex import SCALES, W_1, W_2, on_risks, sem_risks


def test_objectives_of_risks_are_the_methods_own() -> None:
    risks = torch.tensor([1.0, 4.0])
    assert on_risks("ERM", 2)(risks).item() == 2.5
    assert on_risks("RI", 2)(risks).item() == 4
    assert on_risks("VREx", 2, penalty_weight=10.0)(risks).item() == pytest.approx(2.5 + 22.5)
    assert on_risks("MMREx", 2, lambda_min=-1.0)(risks).item() == pytest.approx(3 * 4 - 5)


def test_the_risk_at_a_third_is_the_same_everywhere() -> None:
    q = torch.linspace(0, 1, 7, dtype=torch.double)
    third = torch.tensor(1 / 3, dtype=torch.double)
    torch.testing.assert_close(rex.costly_risk(third, q), torch.full_like(q, 4 / 3))


def test_only_rex_finds_the_minimax_p_from_any_two_environments() -> None:
    values = rex.covariate_shift(1, {})
    for place, erm, ri in (("below", 1, 1), ("between", 0, 1 / 3), ("above", 0, 0)):
        wanted = {"ERM": erm, "RI": ri, "MMREx": 1 / 3, "VREx": 1 / 3}
        for name, p in wanted.items():
            assert values[f"{name}, q {place} 1/3: p"] == pytest.approx([p], abs=2e-3)


@pytest.mark.parametrize("varies", ["2", "Y"])
def test_the_risks_of_the_scalar_model_are_those_of_samples(varies: str) -> None:
    torch.manual_seed(0)
    a, b = 0.4, -0.7
    found = []
    for scale in SCALES:
        n_1, n_y, n_2 = torch.randn(3, 400_000, dtype=torch.double)
        y = W_1 * n_1 + (scale if varies == "Y" else 1.0) * n_y
        x_2 = W_2 * y + (scale if varies == "2" else 1.0) * n_2
        found.append((a * n_1 + b * x_2 - y).square().mean().item())
    risks = sem_risks(torch.tensor([a, b], dtype=torch.double), varies)
    assert risks.tolist() == pytest.approx(found, rel=0.01)


def test_v_rex_ends_at_the_causal_or_the_anticausal_model() -> None:
    values = rex.scalar_sem(1, {})
    found = [values[f"VREx, noise {v} varies: {w}"][0] for v in "2Y" for w in "ab"]
    assert found == pytest.approx([W_1, 0, 0, 1 / W_2], abs=0.01)
    for varies in "2Y":
        weights = [values[f"ERM, noise {varies} varies: {w}"][0] for w in "ab"]
        point = torch.tensor(weights, dtype=torch.double, requires_grad=True)
        (slope,) = torch.autograd.grad(sem_risks(point, varies).mean(), point)
        assert slope.abs().max() < 1e-6
