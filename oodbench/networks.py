"""Networks: a featurizer and a classifier, chosen by name and built for an input shape."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.errors import UserError
from oodbench.hparams import checked, choice, hparam, log_uniform_int
from oodbench.ragged_linear import RaggedLinear
from oodbench.registry import Registry

networks: Registry[type["Network"]] = Registry(
    "network",
    modules=(
        *("oodbench.vision", "oodbench.text_networks", "oodbench.graph_networks"),
        *("oodbench.detectors", "oodbench.code_networks", "oodbench.track_networks"),
    ),
)


def register(name: str) -> Callable[[type["Network"]], type["Network"]]:
    """Register a network under `name`."""
    return networks.add(name)


class Network(nn.Module):
    """A predictor in two parts: `featurizer` maps (N, *input_shape) to (N, F), `classifier` to (N, C).

    A subclass declares its `Hparams` and sets the two parts in its constructor.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams:
        """The network's own hyperparameters."""

    @classmethod
    def check(cls, values: Mapping[str, object]) -> None:
        """Raise UserError if a file that these hyperparameters need is missing; a plan asks."""

    featurizer: nn.Module
    classifier: nn.Module
    hparams: Any
    num_features: int

    def losses(self, x: Tensor, targets: Tensor) -> Tensor | None:
        """The losses (N,) in training of a network that works out its own; None: the task's."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape)."""
        logits: Tensor = self.classifier(self.featurizer(x))
        return logits


@register("MLP")
class MLP(Network):
    """`depth` hidden layers of `width` units; the last hidden layer is the feature vector."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The defaults follow the papers' networks: 3 x 256 for spirals, 2 x 256 for Colored MNIST."""

        width: int = hparam(
            256,
            choice(256, 512),
            low=1,
            by_family={"small_images": (256, log_uniform_int(2**6, 2**9))},
        )
        depth: int = hparam(
            2, None, low=1, by_family={"synthetic": (3, choice(3, 5)), "small_images": (2, None)}
        )
        dropout: float = hparam(0.0, None, low=0.0, high=0.99)
        activation: str = hparam(
            "relu", options=("relu", "leaky_relu"), by_family={"synthetic": ("leaky_relu", None)}
        )
        init: str = hparam(
            "kaiming_uniform",
            options=("kaiming_uniform", "kaiming_normal", "xavier_uniform"),
            by_family={
                "synthetic": ("kaiming_normal", None),
                "small_images": ("xavier_uniform", None),
            },
        )
        bias: float = hparam(0.0, by_family={"synthetic": (0.01, None)})

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__()
        self.hparams = hparams
        activation: type[nn.Module] = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU}[
            hparams.activation
        ]
        sizes = [math.prod(input_shape)] + [hparams.width] * hparams.depth
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in itertools.pairwise(sizes):
            layers += [RaggedLinear(i, o), activation()]
            if hparams.dropout > 0:
                layers.append(nn.Dropout(hparams.dropout))
        self.num_features = hparams.width
        self.featurizer = nn.Sequential(*layers)
        self.classifier = nn.Linear(hparams.width, num_outputs)
        initialize(self.modules(), hparams.init, hparams.bias)


class Scales(nn.Module):
    """Inputs (N, F), each feature times a weight of its own."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F)."""
        return x * self.weight


@register("Linear")
class Linear(Network):
    """A linear predictor x -> w' (phi x), without intercept: phi is learned from the identity on.

    w starts at ones and stays there unless `train_classifier`, as in the linear structural
    equation models of arXiv:1907.02893 (phi a matrix, w fixed). With `diagonal` phi is learned as a
    vector, the weights of the inputs.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """Which factors are learned, and the diagonal of phi before the first update."""

        train_classifier: bool = hparam(False)
        diagonal: bool = hparam(False)
        start: float = hparam(1.0)
        start_std: float = hparam(0.0, low=0.0)
        """The standard deviation of normal noise on `start`, of each element its own."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__()
        self.hparams = hparams
        self.num_features = math.prod(input_shape)
        scales = hparams.start + hparams.start_std * torch.randn(self.num_features)
        self.featurizer = nn.Sequential(nn.Flatten())
        if hparams.diagonal:
            self.featurizer.append(Scales(scales))
        else:
            phi = nn.Linear(self.num_features, self.num_features, bias=False)
            phi.weight = nn.Parameter(torch.diag(scales))
            self.featurizer.append(phi)
        self.classifier = nn.Linear(self.num_features, num_outputs, bias=False)
        nn.init.ones_(self.classifier.weight)
        self.classifier.weight.requires_grad_(hparams.train_classifier or num_outputs > 1)


@register("Head")
class Head(Network):
    """A linear classifier of inputs that are features already."""

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, hparams: Network.Hparams
    ) -> None:
        super().__init__()
        self.hparams = hparams
        self.num_features = math.prod(input_shape)
        self.featurizer = nn.Flatten()
        self.classifier = nn.Linear(self.num_features, num_outputs)


def conv_block(inputs: int, outputs: int) -> nn.Sequential:
    """A 3 x 3 convolution without bias that keeps the size, batch normalisation, ReLU."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def require_image(name: str, input_shape: tuple[int, ...], pixels: int) -> int:
    """The number of channels; raises UserError unless the inputs are (C, H, W), large enough."""
    if len(input_shape) != 3 or min(input_shape[1:]) < pixels:
        raise UserError(
            f"the network {name} takes images of at least {pixels} x {pixels} pixels, "
            f"not inputs of the shape {input_shape}"
        )
    return input_shape[0]


@register("ConvNet")
class ConvNet(Network):
    """A small convolutional network: `depth` blocks, each halves the image and doubles the width."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The width is that of the first block."""

        width: int = hparam(16, low=1)
        depth: int = hparam(2, low=1)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__()
        self.hparams = hparams
        channels = require_image("ConvNet", input_shape, 2**hparams.depth)
        widths = [channels] + [hparams.width * 2**i for i in range(hparams.depth)]
        blocks = [
            nn.Sequential(conv_block(i, o), nn.MaxPool2d(2)) for i, o in itertools.pairwise(widths)
        ]
        self.num_features = widths[-1]
        self.featurizer = nn.Sequential(*blocks, nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(self.num_features, num_outputs)


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        """x + f(x)."""
        result: Tensor = x + self.f(x)
        return result


class Scale(nn.Module):
    """x times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """factor * x."""
        return self.factor * x


@register("FastResNet")
class FastResNet(Network):
    """The residual network of arXiv:2009.00329's CIFAR-10 studies (its released code).

    6,573,120 parameters for 3 channels and 10 classes; `width` is that of the first block. The
    logits are the last layer's output times 1/8.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The width is the released code's."""

        width: int = hparam(64, low=1)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__()
        self.hparams = hparams
        w = hparams.width
        self.num_features = 8 * w
        self.featurizer = nn.Sequential(
            conv_block(require_image("FastResNet", input_shape, 8), w),
            conv_block(w, 2 * w),
            nn.MaxPool2d(2),
            Residual(nn.Sequential(conv_block(2 * w, 2 * w), conv_block(2 * w, 2 * w))),
            conv_block(2 * w, 4 * w),
            nn.MaxPool2d(2),
            conv_block(4 * w, 8 * w),
            nn.MaxPool2d(2),
            Residual(nn.Sequential(conv_block(8 * w, 8 * w), conv_block(8 * w, 8 * w))),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(self.num_features, num_outputs, bias=False), Scale(1 / 8)
        )


def initialize(modules: Iterable[nn.Module], init: str, bias: float) -> None:
    """Set the weights of every linear layer by the scheme `init` and its biases to a constant."""
    schemes: dict[str, Callable[[Tensor], Tensor]] = {
        "kaiming_normal": nn.init.kaiming_normal_,
        "kaiming_uniform": nn.init.kaiming_uniform_,
        "xavier_uniform": nn.init.xavier_uniform_,
    }
    for module in modules:
        if isinstance(module, nn.Linear):
            schemes[init](module.weight)
            if module.bias is not None:
                nn.init.constant_(module.bias, bias)


def build(
    name: str,
    values: Mapping[str, object],
    input_shape: tuple[int, ...],
    num_outputs: int,
    seed: int,
) -> Network:
    """The network `name` with its hyperparameters' `values`, its weights drawn from `seed` alone.

    Raises UserError for an unknown name or value.
    """
    cls: Any = networks.get(name)
    torch.manual_seed(seed)
    hparams = checked(cls.Hparams, values, f"the hyperparameters of the network {name}")
    network: Network = cls(input_shape, num_outputs, hparams)
    return network
