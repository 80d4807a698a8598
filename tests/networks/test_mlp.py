import math

import pytest
import torch
from torch import Tensor, nn

from oodbench.hparams import defaults
from oodbench.networks.base import build, networks
from oodbench.networks.mlp import ROWS, RaggedLinear


def test_the_families_mlps_are_those_of_the_papers() -> None:
    mlp = networks.get("MLP").Hparams
    spirals = build("MLP", defaults(mlp, "synthetic"), (18,), 1, 0)
    linear = [m for m in spirals.modules() if isinstance(m, nn.Linear)]
    assert [tuple(m.weight.shape) for m in linear] == [(256, 18), (256, 256), (256, 256), (1, 256)]
    assert all((m.bias == 0.01).all() for m in linear)
    assert sum(isinstance(m, nn.LeakyReLU) for m in spirals.modules()) == 3
    assert float(linear[1].weight.detach().std()) == pytest.approx(math.sqrt(2 / 256), rel=0.02)

    digits = build("MLP", defaults(mlp, "small_images"), (2, 14, 14), 1, 0)
    linear = [m for m in digits.modules() if isinstance(m, nn.Linear)]
    assert [tuple(m.weight.shape) for m in linear] == [(256, 392), (256, 256), (1, 256)]
    assert all((m.bias == 0).all() for m in linear)
    assert float(linear[0].weight.detach().abs().max()) == pytest.approx(
        math.sqrt(6 / 648), rel=1e-3
    )


def test_an_mlp_is_what_it_says() -> None:
    network = build("MLP", {"width": 7, "depth": 1, "bias": 0.1}, (2, 3), 2, 0)
    x = torch.randn(4, 2, 3)
    first, second = [m for m in network.modules() if isinstance(m, nn.Linear)]
    hidden = (x.flatten(1) @ first.weight.T + first.bias).relu()
    torch.testing.assert_close(network(x), hidden @ second.weight.T + second.bias)


def test_dropout_acts_in_training_only() -> None:
    network = build("MLP", {"dropout": 0.5}, (4,), 1, 0)
    x = torch.randn(64, 4)
    dropped = float((network.featurizer(x) == 0).float().mean())
    network.eval()
    kept = float((network.featurizer(x) == 0).float().mean())
    assert dropped == pytest.approx(0.5 + 0.5 * kept, abs=0.02)
    assert torch.equal(network(x), network(x))


def test_the_linear_network_starts_as_the_sum_of_its_inputs() -> None:
    network = build("Linear", {}, (4,), 1, 0)
    x = torch.randn(6, 4)
    torch.testing.assert_close(network(x), x.sum(1, keepdim=True))
    assert [n for n, p in network.named_parameters() if p.requires_grad] == ["featurizer.1.weight"]


def test_the_linear_network_can_learn_a_weight_for_each_input() -> None:
    network = build("Linear", {"diagonal": True, "start": 0.5}, (2, 2), 1, 0)
    (weight,) = [p for p in network.parameters() if p.requires_grad]
    assert weight.flatten().tolist() == [0.5] * 4
    with torch.no_grad():
        weight.copy_(torch.arange(4.0).view_as(weight))
    x = torch.randn(6, 2, 2)
    torch.testing.assert_close(network.featurizer(x), x.flatten(1) * torch.arange(4.0))
    torch.testing.assert_close(network(x), x.flatten(1) @ torch.arange(4.0)[:, None])


@pytest.mark.parametrize("diagonal", [False, True])
def test_the_linear_network_starts_at_random_where_asked_to(diagonal: bool) -> None:
    values = {"diagonal": diagonal, "start": 0, "start_std": 0.1}
    found = [build("Linear", values, (500,), 1, seed)(torch.eye(500)) for seed in (0, 1)]
    assert not torch.equal(*found)
    for weights in found:
        assert weights.mean().item() == pytest.approx(0, abs=0.02)
        assert weights.std().item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(("values", "outputs"), [({"train_classifier": True}, 1), ({}, 2)])
def test_the_linear_classifier_is_learned_if_asked_for_or_needed(
    values: dict[str, object], outputs: int
) -> None:
    network = build("Linear", values, (4,), outputs, 0)
    assert all(p.requires_grad for p in network.parameters())


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
