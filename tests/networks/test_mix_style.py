import copy

import pytest
import torch
from torch import Tensor

from oodbench.networks.base import build
from oodbench.networks.vision import MixStyle, mixed


def test_styles_are_mixed_as_in_the_equations() -> None:
    torch.manual_seed(0)
    x, other = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64).mul(3).add(1)
    share = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
    found = mixed(x, other, share[:, None, None, None])
    for i in range(3):
        for c in range(4):
            a, b = x[i, c], other[i, c]
            s_a, s_b = ((v.var() + 1e-6).sqrt() for v in (a, b))
            s = share[i] * s_a + (1 - share[i]) * s_b
            m = share[i] * a.mean() + (1 - share[i]) * b.mean()
            torch.testing.assert_close(found[i, c], s * (a - a.mean()) / s_a + m)
    torch.testing.assert_close(found[2], x[2])


def test_statistics_have_no_gradient() -> None:
    x = torch.randn(2, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    other = torch.randn(2, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    share = torch.full((2, 1, 1, 1), 0.5, dtype=torch.float64)
    mixed(x, other, share).sum().backward()  # type: ignore[no-untyped-call]
    deviation = [(v.detach().var((2, 3)) + 1e-6).sqrt() for v in (x, other)]
    slope = 0.5 * (deviation[0] + deviation[1]) / deviation[0]
    assert other.grad is None and x.grad is not None
    torch.testing.assert_close(x.grad, slope[..., None, None].expand_as(x))


def test_it_mixes_in_training_alone_with_its_probability() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 2, 4, 4)
    half = MixStyle(0.5)
    changed = [not torch.equal(half(x), x) for _ in range(200)]
    assert 70 < sum(changed) < 130
    assert torch.equal(half.eval()(x), x)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_residual_networks_take_it_and_their_weights_stay(probability: float) -> None:
    plain = build("ResNet18", {}, (3, 32, 32), 2, 0)
    network = build("ResNet18", {"mix_style": probability}, (3, 32, 32), 2, 0)
    assert network.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(4, 3, 32, 32)

    def training(each: torch.nn.Module) -> Tensor:
        torch.manual_seed(3)
        return each.train()(x)  # type: ignore[no-any-return]

    assert torch.equal(training(network), training(plain)) == (probability == 0)
    mixed_after = range(1, 4) if probability else ()
    for stage, name in enumerate(network.stages):
        assert len(network.get_submodule(name)._forward_hooks) == (stage in mixed_after)
    twin = copy.deepcopy(network)
    network.eval()
    assert torch.equal(training(twin), training(plain)) == (probability == 0)
