"""Random crops, flips and colours of a whole batch of images at once, on its device.

The operations are those of torchvision.transforms with their definitions on floats; every image has
its own parameters, drawn on the CPU from one generator.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

GRAY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in a grey value (ITU-R 601-2)."""
ATTEMPTS = 10
"""Crops that are drawn until one lies within the image."""


def domainbed(x: Tensor, generator: torch.Generator) -> Tensor:
    """The augmentation of arXiv:2007.01434 for images (N, 3, H, W) in [0, 1].

    A crop of 70 to 100 % of the area, resized to the image; a flip with probability 1/2; brightness,
    contrast, saturation and hue changed by up to 0.3; grey with probability 1/10.
    """
    x = random_resized_crop(x, generator, (0.7, 1.0), (3 / 4, 4 / 3))
    x = torch.where(_chance(x, 0.5, generator), x.flip(3), x)
    x = color_jitter(x, generator, 0.3)
    return torch.where(_chance(x, 0.1, generator), gray(x), x)


def _chance(x: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    happens = torch.rand(len(x), generator=generator) < probability
    return happens.to(x.device)[:, None, None, None]


def random_resized_crop(
    x: Tensor, generator: torch.Generator, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """A random crop of each image, resized to the image's own size; see `crops`."""
    boxes = crops(len(x), x.shape[2], x.shape[3], generator, scale, ratio)
    return resized_crops(x, boxes.to(x.device))


def crops(
    count: int,
    height: int,
    width: int,
    generator: torch.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """Boxes (count, 4) of top, left, height, width: as RandomResizedCrop draws them.

    The share of the area is uniform, the ratio of width to height log-uniform; where `ATTEMPTS`
    draws do not fit, it is the largest central box with a ratio in range.
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


def resized_crops(x: Tensor, boxes: Tensor) -> Tensor:
    """The boxes (N, 4) of images (N, C, H, W), each resized to (H, W), bilinearly."""
    grids = []
    for size, start, extent in (
        (x.shape[3], boxes[:, 1], boxes[:, 3]),
        (x.shape[2], boxes[:, 0], boxes[:, 2]),
    ):
        centre = (torch.arange(size, device=x.device) + 0.5) / size
        place = centre * extent[:, None] - 0.5
        place = start[:, None] + torch.minimum(place.clamp(min=0), extent[:, None] - 1)
        grids.append(2 * place / max(1, size - 1) - 1)
    across, down = grids
    shape = (len(x), *x.shape[2:])
    grid = torch.stack([across[:, None, :].expand(shape), down[:, :, None].expand(shape)], 3)
    return F.grid_sample(
        x, grid.to(x.dtype), mode="bilinear", padding_mode="border", align_corners=True
    )


def gray(x: Tensor) -> Tensor:
    """Images (N, 3, H, W) without colour, in three equal channels."""
    weights = x.new_tensor(GRAY)[:, None, None]
    return (x * weights).sum(1, keepdim=True).expand_as(x)


def color_jitter(x: Tensor, generator: torch.Generator, strength: float) -> Tensor:
    """Brightness, contrast, saturation and hue of images (N, 3, H, W) changed at random.

    The first three are multiplied by factors in 1 +- strength, hue is turned by +- strength of a
    circle; every image has an order of its own in which that is done.
    """
    factors = 1 + strength * (2 * torch.rand(4, len(x), generator=generator) - 1)
    order = torch.rand(len(x), 4, generator=generator).argsort(1)
    x = x.clone()
    for turn in range(4):
        for operation, adjust in enumerate((brightness, contrast, saturation, hue)):
            chosen = (order[:, turn] == operation).nonzero().squeeze(1)
            if len(chosen):
                factor = factors[operation, chosen].to(x)[:, None, None, None]
                if operation == 3:
                    factor = factor - 1
                chosen = chosen.to(x.device)
                x[chosen] = adjust(x[chosen], factor)
    return x


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (factor * x + (1 - factor) * other).clamp(0, 1)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Images (N, 3, H, W) times factors (N, 1, 1, 1)."""
    return (x * factor).clamp(0, 1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Distances from the image's mean grey times factors (N, 1, 1, 1)."""
    return _blend(x, gray(x)[:, :1].mean((2, 3), keepdim=True), factor)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Distances from a pixel's grey times factors (N, 1, 1, 1)."""
    return _blend(x, gray(x), factor)


def hue(x: Tensor, turn: Tensor) -> Tensor:
    """Hues of the hexagonal colour model turned by shares (N, 1, 1, 1) of the circle."""
    red, green, blue = x.unbind(1)
    top, bottom = x.amax(1), x.amin(1)
    chroma = top - bottom
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    # the place on the hexagon, in sixths: 0 red, 2 green, 4 blue
    place = torch.where(
        top == red,
        (green - blue) / safe,
        torch.where(top == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    place = place + 6 * turn.squeeze(1)
    # a channel is at the top within a sixth of its own corner and falls to the bottom beyond two
    corners = place.new_tensor([0.0, 2.0, 4.0])[:, None, None]
    distance = ((place.unsqueeze(1) - corners + 3) % 6 - 3).abs()
    return top.unsqueeze(1) - chroma.unsqueeze(1) * (distance - 1).clamp(0, 1)
