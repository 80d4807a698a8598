"""Networks for tracks along a genome."""

import torch
from torch import Tensor, nn

from oodbench.errors import UserError
from oodbench.networks.base import Network, register

WIDTHS = (15, 22, 33, 49, 73, 109)
"""Channels at each resolution, the finest first."""
WINDOW, STRIDE = 200, 50
"""The length of the bins that are predicted, and the distance from one to the next."""


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (inputs, outputs):
        layers += [nn.Conv1d(size, outputs, 7, padding=3), nn.BatchNorm1d(outputs), nn.ReLU(True)]
    return nn.Sequential(*layers)


class _UNet(nn.Module):
    """(N, channels, length) to one number for each window that starts at a multiple of the stride."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(_twice, (channels, *WIDTHS), WIDTHS))
        self.up = nn.ModuleList(nn.ConvTranspose1d(w, w, 2, stride=2) for w in WIDTHS[1:])
        self.merge = nn.ModuleList(map(lambda w, v: _twice(w + v, w), WIDTHS, WIDTHS[1:]))
        self.windows = nn.Conv1d(WIDTHS[0], 1, WINDOW, stride=STRIDE)

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for i, layer in enumerate(self.down):
            x = layer(nn.functional.max_pool1d(x, 2) if i else x)
            levels.append(x)
        for fine, up, merge in zip(levels[-2::-1], self.up[::-1], self.merge[::-1], strict=True):
            x = merge(torch.cat([up(x), fine], 1))
        return torch.flatten(self.windows(x), 1)


@register("UNet1d")
class UNet1d(Network):
    """A U-Net along a genome, six resolutions deep, as WILDS' examples have for `encode`.

    The features are one number a window of 200 bases every 50 bases.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, hparams: Network.Hparams
    ) -> None:
        """Raises UserError for inputs that are no tracks of a length that can be halved five times."""
        super().__init__()
        self.hparams = hparams
        factor = 2 ** (len(WIDTHS) - 1)
        if len(input_shape) != 2 or input_shape[1] < WINDOW or input_shape[1] % factor:
            raise UserError(
                f"the network UNet1d takes tracks (channels, length), the length a multiple of {factor} "
                f"and at least {WINDOW}, not inputs of the shape {input_shape}"
            )
        self.num_features = (input_shape[1] - WINDOW) // STRIDE + 1
        self.featurizer = _UNet(input_shape[0])
        self.classifier = nn.Linear(self.num_features, num_outputs)
