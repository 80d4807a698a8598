"""Networks for images that come from elsewhere: torchvision's, and DomainBed's for digits."""

import hashlib
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.errors import UserError
from oodbench.hparams import choice, hparam
from oodbench.networks import Network, register, require_image

PUBLISHED = {"imagenet": "IMAGENET1K_V1", "coco": "COCO_V1"}
"""Our names of weights that torchvision has published, and its own."""


class Torchvision(Network):
    """A network of torchvision from its input to its pooled features.

    For other than three channels the first layer's weights are repeated, channel i taking those of
    channel i modulo 3, as in arXiv:2007.01434's code.
    """

    model: str
    """Torchvision's name of it."""
    first: str
    """Its first convolution."""
    head: str
    """Its last layer, which is not taken."""
    pixels: int = 1
    """The least side of an image."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """For the family `images` those of arXiv:2007.01434: weights of ImageNet, frozen statistics."""

        weights: str = hparam("none", by_family={"images": ("imagenet", None)})
        """`none`: random; `imagenet`: torchvision's first version, from its cache; or a .pth file that
        torchvision's model could load."""
        freeze_batch_norm: bool = hparam(False, by_family={"images": (True, None)})
        """Whether batch normalisation keeps the statistics that came with the weights."""
        dropout: float = hparam(
            0.0, low=0.0, high=0.99, by_family={"images": (0.0, choice(0.0, 0.1, 0.5))}
        )
        """Of the features."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Hparams) -> None:
        """Raises UserError for inputs that are no images, and for weights that cannot be had."""
        import torchvision.models

        super().__init__()
        self.hparams = hparams
        channels = require_image(type(self).__name__, input_shape, self.pixels)
        body = getattr(torchvision.models, self.model)(weights=None)
        self.num_features = getattr(body, self.head).in_features
        setattr(body, self.head, nn.Identity())
        if hparams.weights != "none":
            _load(body, weights_file(self.model, hparams.weights))
        elif hparams.freeze_batch_norm:
            raise UserError(
                f"the network {type(self).__name__} has no statistics to freeze without `weights`"
            )
        if channels != 3:
            first = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            if hparams.weights != "none":
                places = torch.arange(channels) % 3
                old = body.get_submodule(self.first).weight.detach()
                first.weight.data.copy_(old[:, places])
            body.set_submodule(self.first, first)
        self.featurizer = nn.Sequential(body, nn.Dropout(hparams.dropout))
        self.classifier = nn.Linear(self.num_features, num_outputs)

    @classmethod
    def check(cls, values: Mapping[str, object]) -> None:
        """Whether the weights are there."""
        if values["weights"] != "none":
            weights_file(cls.model, str(values["weights"]))

    def train(self, mode: bool = True) -> "Torchvision":
        """Frozen batch normalisation stays as in evaluation."""
        super().train(mode)
        if self.hparams.freeze_batch_norm:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self


class ResNet(Torchvision):
    """A residual network (arXiv:1512.03385)."""

    first, head = "conv1", "fc"


@register("ResNet18")
class ResNet18(ResNet):
    """18 layers, 512 features; images of 64 x 64 pixels do well too."""

    model = "resnet18"


@register("ResNet50")
class ResNet50(ResNet):
    """50 layers, 2,048 features."""

    model = "resnet50"


@register("DenseNet121")
class DenseNet121(Torchvision):
    """121 layers, each fed by all before it in its block, 1,024 features (arXiv:1608.06993)."""

    model, first, head, pixels = "densenet121", "features.conv0", "classifier", 32


@register("MNISTCNN")
class MNISTCNN(Network):
    """The network for images of digits of arXiv:2007.01434 (D.1 and its code): 128 features.

    Four 3 x 3 convolutions of 64, 128, 128 and 128 channels, the second one halving the image, each
    followed by ReLU and normalisation in 8 groups of channels; then the mean over the image.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, hparams: Network.Hparams
    ) -> None:
        super().__init__()
        self.hparams = hparams
        layers: list[nn.Module] = []
        inputs = require_image("MNISTCNN", input_shape, 2)
        for outputs, stride in ((64, 1), (128, 2), (128, 1), (128, 1)):
            conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
            layers += [conv, nn.ReLU(), nn.GroupNorm(8, outputs)]
            inputs = outputs
        self.num_features = inputs
        self.featurizer = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(inputs, num_outputs)


def weights_file(model: str, weights: str) -> Path:
    """The file of a model's weights, a name in PUBLISHED or a path.

    Raises UserError if it is not there.
    """
    if weights not in PUBLISHED:
        file = Path(weights).expanduser()
        if not file.is_file():
            names = ", ".join(f"`{name}`" for name in ("none", *PUBLISHED))
            raise UserError(f"weights: there is no file {file} ({names} or a .pth file)")
        return file
    from torchvision.models import get_model_weights

    url: str = get_model_weights(model)[PUBLISHED[weights]].url
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not file.is_file():
        raise UserError(
            f"the weights `{weights}` of {model} are not in torch's cache: put {url} into "
            f"{file.parent}, or set the network's `weights` to none or to a file"
        )
    if not sha256(file).startswith(file.stem.rpartition("-")[2]):
        raise UserError(
            f"{file} is damaged (its SHA-256 is not the one in its name); fetch it anew"
        )
    return file


@lru_cache
def sha256(file: Path) -> str:
    """The SHA-256 of a file, looked at once."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@lru_cache(maxsize=1)
def stored_weights(file: Path) -> Mapping[str, Tensor]:
    """A state_dict, but for the last layer of a classifier; raises UserError for other files."""
    state: Any
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError) as error:
        raise UserError(f"{file} is not a file of weights that torch can read") from error
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise UserError(f"{file} does not hold a state_dict of tensors")
    return {
        re.sub(r"\b(norm|conv)\.([12])\b", r"\1\2", k): v  # in the oldest files of DenseNet
        for k, v in state.items()
        if not k.startswith(("fc.", "classifier."))
    }


def _load(body: nn.Module, file: Path) -> None:
    state = stored_weights(file)
    wanted = body.state_dict()
    wrong = [k for k in wanted if k not in state or state[k].shape != wanted[k].shape]
    wrong += [k for k in state if k not in wanted]
    if wrong:
        raise UserError(
            f"{file} holds no weights of {type(body).__name__} as torchvision names and shapes "
            f"them: {len(wrong)} of {len(wanted)} do not fit, '{wrong[0]}' first"
        )
    body.load_state_dict(state)
