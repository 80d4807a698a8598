import math

import pytest
import torch
from torch import Tensor, nn

from oodbench.optimizers import SCHEDULES, Rates, make_optimizer, set_rates

GRADIENTS = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -0.7], [-1.0, 1.0, 0.2]]).double()


def steps(name: str, lr: list[float], decay: list[float]) -> Tensor:
    """The parameters after an update with each of GRADIENTS."""
    parameter = nn.Parameter(torch.tensor([1.0, -1.0, 2.0]).double())
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = make_optimizer(name, [parameter, frozen], lr=99.0, momentum=0.8)
    for gradient, rate, weight_decay in zip(GRADIENTS, lr, decay, strict=True):
        parameter.grad = gradient.clone()
        set_rates(optimizer, Rates(rate, weight_decay))
        optimizer.step()
    return parameter.detach()


LR, DECAY = [0.1, 0.2, 0.05], [0.5, 0.0, 0.1]


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_adam_and_sgd_have_coupled_decay_and_adamw_decays_beside_its_moments(name: str) -> None:
    w = torch.tensor([1.0, -1.0, 2.0]).double()
    m = v = torch.zeros(3).double()
    for t, g in enumerate(GRADIENTS):
        decay = DECAY[t] * w
        g = g if name == "adamw" else g + decay
        if name == "sgd":
            step = m = 0.8 * m + g
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            step = (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
        w = w - LR[t] * (step + decay if name == "adamw" else step)
    torch.testing.assert_close(steps(name, LR, DECAY), w)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4, 4), (3, 1, 2, 2)])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_how_a_gradient_lies_in_memory_moves_nothing(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    gradients, before = torch.randn(3, *shape).double(), torch.randn(shape).double()

    def after(transposed: bool) -> Tensor:
        parameter = nn.Parameter(before.clone())
        optimizer = make_optimizer(name, [parameter], lr=0.1, momentum=0.8)
        for gradient in gradients:
            parameter.grad = gradient.mT.contiguous().mT if transposed else gradient.clone()
            assert parameter.grad.is_contiguous() != transposed
            optimizer.step()
        return parameter.detach()

    assert torch.equal(after(transposed=True), after(transposed=False))


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("constant", {0.0: 1.0, 0.99: 1.0}),
        ("drop", {0.0: 1.0, 0.749: 1.0, 0.75: 0.1, 0.99: 0.1}),
        ("two_drops", {0.0: 1.0, 0.49: 1.0, 0.5: 0.1, 0.74: 0.1, 0.75: 0.01}),
        ("three_drops", {0.59: 1.0, 0.6: 0.3, 0.74: 0.09, 0.88: 0.027}),
        ("cosine", {0.0: 1.0, 0.5: 0.5, 0.75: 0.5 - 0.25 * math.sqrt(2), 1.0: 0.0}),
        ("linear", {0.0: 1.0, 0.25: 0.75, 1.0: 0.0}),
        ("decay_60", {0.0: 1.0, 0.9 / 60: 1.0, 1.1 / 60: 0.96, 0.999: 0.96**59}),
        ("decay_200", {0.0: 1.0, 1.1 / 200: 0.96, 0.999: 0.96**199}),
        ("exponential", {0.0: 1.0, 0.5: 0.9995**500, 1.0: 0.9995**1000}),
        ("ganin", {0.0: 1.0, 1.0: 11**-0.75}),
    ],
)
def test_schedules(name: str, factors: dict[float, float]) -> None:
    for progress, factor in factors.items():
        assert SCHEDULES[name](progress) == pytest.approx(factor, rel=2e-4)


def test_no_schedule_goes_untested() -> None:
    rows = test_schedules.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert set(SCHEDULES) == {name for name, _ in rows}
