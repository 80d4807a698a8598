import pytest
import torch
from torch import Tensor, nn

from oodbench.networks.base import build, networks

IMAGES = ("ConvNet", "FastResNet", "MNISTCNN", "ResNet18", "ResNet50")
TEXTS = ("DistilBERT", "TextCNN", "TextModel")
ELSEWHERE = ("DenseNet121", "GIN", "FasterRCNN", "CodeGPT", "timm", "CLIP")
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


@pytest.mark.parametrize(
    ("name", "shape"),
    [*((n, (2, 8, 8)) for n in OTHERS), ("TextCNN", (7,)), ("DenseNet121", (8, 32, 32))],
)
def test_weights_depend_on_the_seed_alone(name: str, shape: tuple[int, ...]) -> None:
    def weights(seed: int) -> Tensor:
        return nn.utils.parameters_to_vector(build(name, {}, shape, 2, seed).parameters())

    torch.manual_seed(123)
    first = weights(0)
    torch.manual_seed(456)
    assert torch.equal(first, weights(0))
    if name != "Linear":
        assert not torch.equal(first, weights(1))
