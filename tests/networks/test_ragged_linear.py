"""Layers of odd widths give what torch's own give."""

import pytest
import torch
from torch import Tensor, nn

from oodbench.networks.base import build
from oodbench.networks.mlp import ROWS, RaggedLinear


def values(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs of `layer`, and the gradients of a function of them."""
    x = x.clone().requires_grad_()
    out = layer(x)
    gradients = torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()], create_graph=True)
    second = torch.autograd.grad(gradients[0].square().sum(), [*layer.parameters()][:1])
    return [out, *gradients, *second]


@pytest.mark.parametrize("width", [390, 384, 3])
@pytest.mark.parametrize("rows", [ROWS, ROWS - 1])
def test_outputs_and_gradients_are_those_of_a_linear_layer(width: int, rows: int) -> None:
    torch.manual_seed(0)
    layer = RaggedLinear(20, width).double()
    plain = nn.Linear(20, width).double()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(rows, 20, dtype=torch.float64)
    for ours, theirs in zip(values(layer, x), values(plain, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_only_long_batches_of_odd_widths_lie_in_columns() -> None:
    def columns(width: int, *shape: int) -> bool:
        return not RaggedLinear(20, width)(torch.zeros(*shape, 20)).is_contiguous()

    assert columns(390, ROWS)
    assert not columns(384, ROWS) and not columns(3, ROWS) and not columns(390, ROWS - 1)
    assert not columns(390, 2, ROWS)


def test_a_network_scores_the_same_in_long_and_in_short_batches() -> None:
    network = build("MLP", {"width": 101, "depth": 2}, (7,), 3, seed=0).double()
    x = torch.randn(ROWS, 7, dtype=torch.float64)
    apart = torch.cat([network(part) for part in (x[:100], x[100:])])
    torch.testing.assert_close(network(x), apart, rtol=1e-12, atol=1e-12)
    assert network.featurizer(x).stride() == (1, ROWS)
