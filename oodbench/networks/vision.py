"""Networks for images: torchvision's, DomainBed's MNIST network, and small convolutional networks."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oodbench.errors import UserError
from oodbench.hparams import choice, hparam
from oodbench.networks.base import Network, register
from oodbench.networks.weights import FromTorchvision, load_weights


class Torchvision(FromTorchvision):
    """A network of torchvision up to its pooled features.

    Unless there are three channels, channel i of the first layer takes the weights of channel i modulo 3,
    as in arXiv:2007.01434's code.
    """

    first: str
    """The name of the first convolution."""
    head: str
    """The name of the last layer, which is removed."""
    pixels: int = 1
    """The smallest side of an image."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """The family `images` has the defaults of arXiv:2007.01434: ImageNet weights, frozen statistics."""

        weights: str = hparam("none", by_family={"images": ("imagenet", None)})
        """`none`: random; `imagenet`: torchvision's version 1, from its cache; or a .pth file for
        torchvision's model. A run's id holds this value, even if it is a path, unless `sha256` is given."""
        sha256: str = hparam("", neutral="")
        """The SHA-256 of the file of the weights, which then replaces the path in a run's id; a run refuses
        any other file."""
        freeze_batch_norm: bool = hparam(False, by_family={"images": (True, None)})
        """Whether batch normalisation keeps the running statistics of the weights."""
        dropout: float = hparam(
            0.0, low=0.0, high=0.99, by_family={"images": (0.0, choice(0.0, 0.1, 0.5))}
        )
        """The share of the features that dropout sets to 0."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        """Raise UserError if the inputs are not images, or if the weights cannot be loaded."""
        import torchvision.models

        super().__init__(hparams)
        channels = require_image(type(self).__name__, input_shape, self.pixels)
        body = getattr(torchvision.models, self.model)(weights=None)
        self.num_features = getattr(body, self.head).in_features
        setattr(body, self.head, nn.Identity())
        if (file := self.checked_file(vars(hparams))) is not None:
            load_weights(body, file)
        if channels != 3:
            first = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            if hparams.weights != "none":
                old = body.get_submodule(self.first).weight.detach()
                first.weight.data.copy_(old[:, torch.arange(channels) % 3])
            parent, _, name = self.first.rpartition(".")
            setattr(body.get_submodule(parent), name, first)
        self.featurizer = nn.Sequential(body, nn.Dropout(hparams.dropout))
        self.classifier = nn.Linear(self.num_features, num_outputs)


class ResNet(Torchvision):
    """A residual network (arXiv:1512.03385)."""

    first, head = "conv1", "fc"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Torchvision.Hparams):
        """The authors of MixStyle use a probability of 0.5."""

        mix_style: float = hparam(0.0, low=0.0, high=1.0, neutral=0.0)
        """The probability that a batch's styles are mixed after the first stages (MixStyle,
        arXiv:2104.02008)."""
        mix_style_stages: int = hparam(3, low=1, high=4, neutral=3)
        """The number of stages, of four, after which styles are mixed; the authors use three for PACS and
        two for Office-Home."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__(input_shape, num_outputs, hparams)
        if hparams.mix_style:
            stages = self.stages[1 : 1 + hparams.mix_style_stages]
            add_mix_style(self, stages, hparams.mix_style)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stem after its pooling, and the four stages."""
        names = ("maxpool", "layer1", "layer2", "layer3", "layer4")
        return tuple(f"featurizer.0.{name}" for name in names)


@register("ResNet18")
class ResNet18(ResNet):
    """18 layers, 512 features; images of 64 x 64 pixels are large enough."""

    model = "resnet18"


@register("ResNet50")
class ResNet50(ResNet):
    """50 layers, 2,048 features."""

    model = "resnet50"


@register("DenseNet121")
class DenseNet121(Torchvision):
    """121 layers, each fed by all earlier layers of its block; 1,024 features (arXiv:1608.06993)."""

    model, first, head, pixels = "densenet121", "features.conv0", "classifier", 32


@register("MNISTCNN")
class MNISTCNN(Network):
    """The network of arXiv:2007.01434 for images of digits (D.1 and its code): 128 features.

    Four 3 x 3 convolutions with 64, 128, 128 and 128 channels, each followed by ReLU and group
    normalisation in 8 groups; the second has stride 2. Then the mean over the image.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, hparams: Network.Hparams
    ) -> None:
        super().__init__(hparams)
        layers: list[nn.Module] = []
        inputs = require_image("MNISTCNN", input_shape, 2)
        for outputs, stride in ((64, 1), (128, 2), (128, 1), (128, 1)):
            conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
            layers += [conv, nn.ReLU(), nn.GroupNorm(8, outputs)]
            inputs = outputs
        self.num_features = inputs
        self.featurizer = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(inputs, num_outputs)


def conv_block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A 3 x 3 convolution without bias, batch normalisation and ReLU."""
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def require_image(name: str, input_shape: tuple[int, ...], pixels: int) -> int:
    """The number of channels; raises UserError unless inputs are (C, H, W) and H, W >= `pixels`."""
    if len(input_shape) != 3 or min(input_shape[1:]) < pixels:
        raise UserError(
            f"the network {name} takes images of at least {pixels} x {pixels} pixels, "
            f"not inputs of the shape {input_shape}"
        )
    return input_shape[0]


@register("ConvNet")
class ConvNet(Network):
    """A small convolutional network: each of `depth` blocks halves the image and doubles the width."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """`width` is the first block's number of channels."""

        width: int = hparam(16, low=1)
        depth: int = hparam(2, low=1, high=1000)
        strided: bool = hparam(False, neutral=False)
        """Whether the convolutions halve the image by a stride of 2 instead of a pooling layer, at a
        quarter of the cost."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__(hparams)
        channels = require_image("ConvNet", input_shape, 2**hparams.depth)
        widths = [channels] + [hparams.width * 2**i for i in range(hparams.depth)]
        blocks = [
            conv_block(i, o, 2)
            if hparams.strided
            else nn.Sequential(conv_block(i, o), nn.MaxPool2d(2))
            for i, o in itertools.pairwise(widths)
        ]
        self.num_features = widths[-1]
        self.featurizer = nn.Sequential(*blocks, nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(self.num_features, num_outputs)


class _Residual(nn.Module):
    """A residual connection around a module f: x + f(x)."""

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.f(x)
        return result


class _Scale(nn.Module):
    """A layer that multiplies its input by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


@register("FastResNet")
class FastResNet(Network):
    """The residual network of arXiv:2009.00329's CIFAR-10 experiments (its released code).

    6,573,120 parameters for 3 channels and 10 classes. The logits are the last layer's output times 1/8.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """`width` is the first block's number of channels."""

        width: int = hparam(64, low=1)

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        super().__init__(hparams)
        w = hparams.width
        self.num_features = 8 * w
        self.featurizer = nn.Sequential(
            conv_block(require_image("FastResNet", input_shape, 8), w),
            conv_block(w, 2 * w),
            nn.MaxPool2d(2),
            _Residual(nn.Sequential(conv_block(2 * w, 2 * w), conv_block(2 * w, 2 * w))),
            conv_block(2 * w, 4 * w),
            nn.MaxPool2d(2),
            conv_block(4 * w, 8 * w),
            nn.MaxPool2d(2),
            _Residual(nn.Sequential(conv_block(8 * w, 8 * w), conv_block(8 * w, 8 * w))),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(self.num_features, num_outputs, bias=False), _Scale(1 / 8)
        )


def mixed(x: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Feature maps (N, C, H, W) with their style mixed with that of `other` (arXiv:2104.02008).

    x -> s_mix (x - m) / s + m_mix, where m and s are the mean and standard deviation over the pixels of
    each image and channel, and m_mix and s_mix are `share` (N, 1, 1, 1) times those of x plus 1 - `share`
    times those of `other`. As in the authors' code the variance is unbiased plus 1e-6, and no gradient
    flows through the statistics.
    """
    means, deviations = [], []
    for maps in (x.detach(), other.detach()):
        means.append(maps.mean((2, 3), keepdim=True))
        deviations.append((maps.var((2, 3), keepdim=True) + 1e-6).sqrt())
    mean, deviation = (share * a + (1 - share) * b for a, b in (means, deviations))
    return deviation * (x - means[0]) / deviations[0] + mean


class MixStyle(nn.Module):
    """In training mode, with some probability, mix the styles of all images of a batch.

    Each image is mixed with a random image of the batch, from any environment (the paper's random shuffle),
    with a share drawn from Beta(0.1, 0.1). The authors' code mostly uses the probability 0.5.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """The feature maps (N, C, H, W), mixed or unchanged."""
        if not self.training or x.shape[2] * x.shape[3] < 2 or torch.rand(()) >= self.probability:
            return x
        alpha = torch.full((len(x), 1, 1, 1), 0.1, device=x.device, dtype=x.dtype)
        share = torch.distributions.Beta(alpha, alpha, validate_args=False).sample()
        return mixed(x, x[torch.randperm(len(x), device=x.device)], share)

    def hook(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        """A forward hook that mixes a module's outputs."""
        # a bound method: a deep copy of the network hooks its copy of this module
        mixed_output: Tensor = self(output)
        return mixed_output


def add_mix_style(network: Network, stages: Iterable[str], probability: float) -> None:
    """Mix the styles of the outputs of some modules of a network in training."""
    mix = MixStyle(probability)
    network.mix_style = mix  # as a submodule it follows the network's training mode
    for name in stages:
        network.get_submodule(name).register_forward_hook(mix.hook)
