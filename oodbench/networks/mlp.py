"""Fully connected networks and linear predictors."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oodbench.hparams import choice, hparam, log_uniform_int
from oodbench.networks.base import Network, register

ACTIVATIONS = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "tanh": nn.Tanh}


@register("MLP")
class MLP(Network):
    """`depth` hidden layers of `width` units; the last hidden layer is the feature vector."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The defaults are the papers': 3 x 256 for Spirals, 2 x 256 for Colored MNIST."""

        width: int = hparam(
            256,
            choice(256, 512),
            low=1,
            by_family={"small_images": (256, log_uniform_int(2**6, 2**9))},
        )
        depth: int = hparam(
            2,
            None,
            low=1,
            high=1000,
            by_family={"synthetic": (3, choice(3, 5)), "small_images": (2, None)},
        )
        dropout: float = hparam(0.0, None, low=0.0, high=0.99)
        activation: str = hparam(
            "relu", options=tuple(ACTIVATIONS), by_family={"synthetic": ("leaky_relu", None)}
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
        super().__init__(hparams)
        activation = ACTIVATIONS[hparams.activation]
        sizes = [math.prod(input_shape)] + [hparams.width] * hparams.depth
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in itertools.pairwise(sizes):
            layers += [nn.Linear(i, o), activation()]
            if hparams.dropout > 0:
                layers.append(nn.Dropout(hparams.dropout))
        self.num_features = hparams.width
        self.featurizer = nn.Sequential(*layers)
        self.classifier = nn.Linear(hparams.width, num_outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                getattr(nn.init, f"{hparams.init}_")(module.weight)
                nn.init.constant_(module.bias, hparams.bias)


class Scales(nn.Module):
    """A learned weight for each feature."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        """The weighted inputs, (N, F)."""
        return x * self.weight


@register("Linear")
class Linear(Network):
    """A linear predictor x -> w' (phi x) without intercept (arXiv:1907.02893).

    phi is a learned matrix that starts as the identity; with `diagonal` it is a learned vector of weights.
    w is fixed at ones unless `train_classifier`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """Which factors are learned, and the initial diagonal of phi."""

        train_classifier: bool = hparam(False)
        diagonal: bool = hparam(False)
        start: float = hparam(1.0)
        start_std: float = hparam(0.0, low=0.0)
        """The standard deviation of the normal noise on phi's initial diagonal."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__(hparams)
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
    """A linear classifier on inputs that are features."""

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, hparams: Network.Hparams
    ) -> None:
        super().__init__(hparams)
        self.num_features = math.prod(input_shape)
        self.featurizer = nn.Flatten()
        self.classifier = nn.Linear(self.num_features, num_outputs)
