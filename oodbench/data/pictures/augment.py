"""Random crops, flips and colours for a whole batch of images at once, on its device.

The operations are those of torchvision.transforms as defined for floats. Every image has its own
parameters, which are drawn on the CPU from one generator.
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.data.streams import to_device

GRAY = (0.2989, 0.587, 0.114)
"""The weights of red, green and blue in a grey value (ITU-R 601-2)."""
ATTEMPTS = 10
"""The number of crops that are drawn to find one that lies within the image."""


def domainbed(x: Tensor, generator: torch.Generator) -> Tensor:
    """The augmentation of arXiv:2007.01434 for images (N, 3, H, W) in [0, 1].

    A crop of 70 to 100 % of the area, resized to the image; a flip with probability 1/2; brightness,
    contrast, saturation and hue jittered by up to 0.3; grey with probability 1/10.
    """
    boxes = crops(len(x), x.shape[2], x.shape[3], generator, (0.7, 1.0), (3 / 4, 4 / 3))
    flipped, colorless = torch.rand(2, len(x), generator=generator)
    x = resized_crops(x, *(to_device(drawn, x.device) for drawn in (boxes, flipped < 0.5)))
    x = color_jitter(x, generator, 0.3)
    chosen = to_device((colorless < 0.1).nonzero().squeeze(1), x.device)
    x[chosen] = gray(x[chosen]).expand(-1, 3, -1, -1)
    return x


def crops(
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Boxes (count, 4) of top, left, height and width, drawn as by RandomResizedCrop.

    The share of the area is uniform in `scale`, and the ratio of width to height log-uniform in `ratio`. If
    no draw of `ATTEMPTS` fits, the box is the largest central one with a ratio in range.
    """
    u = torch.rand(4, count, ATTEMPTS, generator=generator, dtype=torch.float64)
    area = height * width * (scale[0] + u[0] * (scale[1] - scale[0]))
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = (low + u[1] * (high - low)).exp()
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    top, left = (u[2] * (height - h + 1)).floor(), (u[3] * (width - w + 1)).floor()
    first = fits.long().argmax(1, keepdim=True)
    boxes = torch.stack([v.gather(1, first).squeeze(1) for v in (top, left, h, w)], 1)
    w0 = min(width, round(height * ratio[1]))
    h0 = min(height, round(width / ratio[0]))
    central = torch.tensor([(height - h0) // 2, (width - w0) // 2, h0, w0], dtype=torch.float64)
    return torch.where(fits.any(1, keepdim=True), boxes, central).long()


def resized_crops(x: Tensor, boxes: Tensor, flipped: Tensor) -> Tensor:
    """The boxes (N, 4) of images (N, C, H, W), resized bilinearly to (H, W).

    Left and right are exchanged in the images that the mask `flipped` (N,) marks.
    """
    down = _centres(x.shape[2], boxes[:, 0], boxes[:, 2])
    across = _centres(x.shape[3], boxes[:, 1], boxes[:, 3])
    across = torch.where(flipped[:, None], across.flip(1), across)
    shape = (len(x), *x.shape[2:])
    grid = torch.stack([across[:, None, :].expand(shape), down[:, :, None].expand(shape)], 3)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=True)


def _centres(size: int, start: Tensor, extent: Tensor) -> Tensor:
    """The centres (N, size), from -1 to 1, of `size` pixels along one side of each box."""
    centre = (torch.arange(size, device=start.device) + 0.5) / size
    pixel = (centre * extent[:, None] - 0.5).clamp(min=0)
    pixel = start[:, None] + torch.minimum(pixel, extent[:, None] - 1)
    return 2 * pixel / max(1, size - 1) - 1


def gray(x: Tensor) -> Tensor:
    """The grey values (N, 1, H, W) of images (N, 3, H, W)."""
    red, green, blue = x.tensor_split(3, 1)
    return (GRAY[0] * red).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])


def color_jitter(x: Tensor, generator: torch.Generator, strength: float) -> Tensor:
    """Images (N, 3, H, W) with brightness, contrast, saturation and hue changed at random.

    The first three are multiplied by factors within 1 ± `strength`, and the hue is turned by at most the
    share `strength` of a circle. The order of the four is random for every image.
    """
    amounts = strength * (2 * torch.rand(len(x), 4, generator=generator) - 1)
    order = torch.rand(len(x), 4, generator=generator).argsort(1)
    # images are sorted by their next operation, so that each operation changes a slice
    position = torch.arange(len(x))
    for operation, amount in zip(order.T, amounts.gather(1, order).T, strict=True):
        sizes = operation.bincount(minlength=len(OPERATIONS)).tolist()
        images = operation.argsort()
        x = x.index_select(0, to_device(position[images], x.device))
        position[images] = torch.arange(len(x))
        extents = to_device(amount[images], x.device)[:, None, None, None]
        parts = zip(torch.split(x, sizes), torch.split(extents, sizes), strict=True)
        for change, (part, extent) in zip(OPERATIONS, parts, strict=True):
            change(part, extent)
    return x.index_select(0, to_device(position, x.device))


def brightness(x: Tensor, amount: Tensor) -> None:
    """Multiply images (N, 3, H, W) by 1 + amount (N, 1, 1, 1), in place."""
    x.mul_(1 + amount).clamp_(0, 1)


def contrast(x: Tensor, amount: Tensor) -> None:
    """Multiply the distances of images (N, 3, H, W) from their mean grey by 1 + amount, in place."""
    other = gray(x.mean((2, 3), keepdim=True)).mul_(amount)
    x.mul_(1 + amount).sub_(other).clamp_(0, 1)


def saturation(x: Tensor, amount: Tensor) -> None:
    """Multiply the distances of images (N, 3, H, W) from their grey values by 1 + amount, in place."""
    other = gray(x).mul_(amount)
    x.mul_(1 + amount).sub_(other).clamp_(0, 1)


def hue(x: Tensor, turn: Tensor) -> None:
    """Turn the hues of images (N, 3, H, W) by shares (N, 1, 1, 1) of the circle, at most 1/3, in place.

    On the hexagon of colours, a circle of length 6, red lies at 0, green at 2 and blue at -2. A channel has
    its largest value at distances up to 1 from its corner, the smallest value beyond 2, and is linear in
    between. Positions are kept multiplied by the chroma, top - bottom, as the chroma may be 0.
    """
    red, green, blue = x.tensor_split(3, 1)
    top = torch.maximum(torch.maximum(red, green), blue)
    bottom = torch.minimum(torch.minimum(red, green), blue)
    chroma = top - bottom
    position = (green + blue).sub_(red).add_(top).sub_(bottom, alpha=2).copysign_(green - blue)
    position.add_(6 * turn * chroma)
    corners = _corners(x.dtype, x.device)
    value = (position - corners * chroma).abs_().sub_(3 * chroma).abs_().add_(bottom - chroma)
    torch.minimum(torch.maximum(value, bottom, out=value), top, out=x)


@lru_cache
def _corners(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor((0, 2, -2), dtype=dtype, device=device)[:, None, None]


OPERATIONS = (brightness, contrast, saturation, hue)
