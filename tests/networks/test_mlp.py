import math

import pytest
import torch
from torch import nn

from oodbench.hparams import defaults
from oodbench.networks.base import Perturbation, build, networks


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
    largest = float(linear[0].weight.detach().abs().max())
    assert largest == pytest.approx(math.sqrt(6 / 648), rel=1e-3)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_an_mlp_is_what_it_says(activation: str) -> None:
    values = {"width": 7, "depth": 1, "bias": 0.1, "activation": activation}
    network = build("MLP", values, (2, 3), 2, 0)
    x = torch.randn(4, 2, 3)
    first, second = [m for m in network.modules() if isinstance(m, nn.Linear)]
    hidden = getattr(torch, activation)(x.flatten(1) @ first.weight.T + first.bias)
    torch.testing.assert_close(network(x), hidden @ second.weight.T + second.bias)


def test_dropout_acts_once_and_in_training_only() -> None:
    network = build("MLP", {"dropout": 0.5}, (4,), 1, 0)
    assert not any(isinstance(m, Perturbation) for m in network.modules())
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
    for values, outputs in (({"train_classifier": True}, 1), ({}, 2)):  # where it is needed
        network = build("Linear", values, (4,), outputs, 0)
        assert all(p.requires_grad for p in network.parameters())


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
