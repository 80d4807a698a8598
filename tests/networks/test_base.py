import math

import pytest
import torch
from torch import Tensor, nn

from oodbench.errors import UserError
from oodbench.hparams import defaults
from oodbench.networks.base import build, networks

IMAGES = ("ConvNet", "FastResNet", "MNISTCNN", "ResNet18", "ResNet50")
TEXTS = ("DistilBERT", "TextCNN")
ELSEWHERE = ("DenseNet121", "GIN", "FasterRCNN", "CodeGPT", "UNet1d")
OTHERS = [name for name in networks if name not in (*TEXTS, *ELSEWHERE)]
"""Those that take images of 8 x 8 pixels, or anything."""


@pytest.mark.parametrize(
    ("name", "shape"),
    [(n, s) for n in OTHERS for s in ((3,), (2, 8, 9)) if n not in IMAGES or len(s) == 3],
)
def test_the_parts_have_the_promised_shapes(name: str, shape: tuple[int, ...]) -> None:
    network = build(name, {}, shape, 3, seed=0)
    network.eval()
    x = torch.randn(5, *shape)
    features = network.featurizer(x)
    assert features.shape == (5, network.num_features)
    assert network(x).shape == (5, 3)
    assert torch.equal(network(x), network.classifier(features))


@pytest.mark.parametrize("name", OTHERS)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    def weights(seed: int) -> Tensor:
        return nn.utils.parameters_to_vector(build(name, {}, (2, 8, 8), 2, seed).parameters())

    torch.manual_seed(123)
    first = weights(0)
    torch.manual_seed(456)
    assert torch.equal(first, weights(0))
    if name != "Linear":
        assert not torch.equal(first, weights(1))


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


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match=r"unknown network 'mpl'; did you mean MLP\?"):
        build("mpl", {}, (4,), 1, 0)
    with pytest.raises(
        UserError, match=r"'widht' in the hyperparameters of the network MLP; .*width"
    ):
        build("MLP", {"widht": 3}, (4,), 1, 0)
    with pytest.raises(UserError, match=r"'width' in .* must be at least 1, not 0"):
        build("MLP", {"width": 0}, (4,), 1, 0)


def test_the_residual_network_is_the_released_one() -> None:
    network = build("FastResNet", {}, (3, 32, 32), 10, 0)
    assert sum(p.numel() for p in network.parameters()) == 6_573_120
    sizes: list[tuple[int, ...]] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda m, i, o: sizes.append(tuple(o.shape[1:])))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        features = network.eval().featurizer(x)
        logits = network(x)
    assert sizes[: len(sizes) // 2] == [
        *((64, 32, 32), (128, 32, 32), (128, 16, 16), (128, 16, 16)),
        *((256, 16, 16), (512, 8, 8), (512, 4, 4), (512, 4, 4)),
    ]
    weight = network.get_parameter("classifier.0.weight")
    torch.testing.assert_close(logits, 0.125 * features @ weight.T)


def test_a_residual_block_adds_its_input() -> None:
    network = build("FastResNet", {"width": 1}, (1, 8, 8), 2, 0)
    x = torch.randn(3, 2, 4, 4)
    block = network.get_submodule("featurizer.3").eval()
    torch.testing.assert_close(block(x), x + block.get_submodule("f")(x))


@pytest.mark.parametrize(
    ("name", "shape"), [("ConvNet", (4,)), ("ConvNet", (1, 3, 8)), ("FastResNet", (3, 7, 8))]
)
def test_images_that_are_none_or_too_small_are_named(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=rf"the network {name} takes images of at least \d x \d"):
        build(name, {}, shape, 2, 0)
