import math

import pytest
import torch
from torch import Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as reference

from oodbench.data.pictures import augment


def images(count: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, 17, 23, generator=generator)
    x[0, :, :5] = 0.4  # grey, where a hue has no place
    x[0, 0, 5:9], x[0, 1:, 5:9] = 1.0, 0.0
    return x


def test_crops_are_torchvisions() -> None:
    x = images()
    corners = [[0, 0, 17, 23], [3, 4, 10, 9], [16, 22, 1, 1]]
    boxes = torch.tensor([*corners, [0, 0, 5, 23], [2, 0, 15, 20], [1, 1, 12, 22]])
    flipped = torch.tensor([False, True, False, False, True, False])
    found = augment.resized_crops(x, boxes, flipped)
    for image, box, flip, result in zip(x, boxes.tolist(), flipped, found, strict=True):
        wanted = reference.resized_crop(image, *box, size=[17, 23], antialias=False)
        wanted = reference.hflip(wanted) if flip else wanted
        torch.testing.assert_close(result, wanted, atol=2e-6, rtol=0)


def test_boxes_are_distributed_as_torchvisions() -> None:
    scale, ratio, count = (0.7, 1.0), (3 / 4, 4 / 3), 4000
    generator = torch.Generator().manual_seed(0)
    ours = augment.crops(count, 64, 64, generator, scale, ratio)
    torch.manual_seed(0)
    image = torch.zeros(3, 64, 64)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(count)]
    )
    for f in (
        *(lambda b, i=i: b[:, i] for i in range(4)),
        lambda b: b[:, 2] * b[:, 3],
        lambda b: (b[:, 3] / b[:, 2]).log() ** 2,
        lambda b: b[:, 0] * b[:, 2],
    ):
        a, b = f(ours).double(), f(theirs).double()  # type: ignore[no-untyped-call]
        error = math.sqrt((a.var() + b.var()) / count)
        assert abs(a.mean() - b.mean()) < 4 * error
    assert (ours[:, 0] + ours[:, 2] <= 64).all() and (ours[:, 1] + ours[:, 3] <= 64).all()


@pytest.mark.parametrize(("height", "width"), [(10, 100), (100, 10), (8, 8)])
def test_where_no_box_fits_it_is_torchvisions_central_one(height: int, width: int) -> None:
    ratio = (3 / 4, 4 / 3)
    generator = torch.Generator().manual_seed(0)
    found = augment.crops(3, height, width, generator, (2.0, 3.0), ratio)
    wanted = RandomResizedCrop.get_params(torch.zeros(3, height, width), [2.0, 3.0], list(ratio))
    assert found.tolist() == [list(wanted)] * 3


OPERATIONS = ("brightness", "contrast", "saturation", "hue")
AMOUNTS = (-0.3, -0.15, 0.0, 0.1, 0.3, 0.27)


def by_torchvision(image: Tensor, operation: int, amount: float) -> Tensor:
    adjust = getattr(reference, f"adjust_{OPERATIONS[operation]}")
    result: Tensor = adjust(image, amount + (operation < 3))
    return result


@pytest.mark.parametrize("operation", range(4))
def test_colours_are_torchvisions(operation: int) -> None:
    x = images()
    found = x.clone()
    augment.OPERATIONS[operation](found, torch.tensor(AMOUNTS)[:, None, None, None])
    for image, amount, result in zip(x, AMOUNTS, found, strict=True):
        wanted = by_torchvision(image, operation, amount)
        torch.testing.assert_close(result, wanted, atol=3e-6, rtol=0)


def test_jitter_is_some_order_of_the_four_with_factors_in_range() -> None:
    """Redone by torchvision, image by image, with the parameters that the generator gives."""
    x = images(40)
    found = augment.color_jitter(x, torch.Generator().manual_seed(5), 0.3)
    generator = torch.Generator().manual_seed(5)
    amounts = 0.3 * (2 * torch.rand(40, 4, generator=generator) - 1)
    orders = torch.rand(40, 4, generator=generator).argsort(1)
    assert len({tuple(order) for order in orders.tolist()}) > 10
    for image, amount, order, result in zip(x, amounts, orders, found, strict=True):
        for operation in order.tolist():
            image = by_torchvision(image, operation, float(amount[operation]))
        torch.testing.assert_close(result, image, atol=1e-5, rtol=0)


def test_the_whole_depends_on_the_generator_alone() -> None:
    x = images(200)
    first, same, other = (
        augment.domainbed(x, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    torch.manual_seed(3)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert first.shape == x.shape and 0 <= float(first.min()) and float(first.max()) <= 1
    grey = (first.amax(1) - first.amin(1)).flatten(1).amax(1) < 1e-6
    assert 5 <= int(grey.sum()) <= 40  # of 200, a tenth on average


def test_half_of_the_images_are_flipped() -> None:
    ramp = torch.linspace(0.2, 0.8, 16).expand(400, 3, 16, 16).contiguous()
    found = augment.domainbed(ramp, torch.Generator().manual_seed(0)).mean((1, 2))
    flipped = found[:, :4].mean(1) > found[:, -4:].mean(1)
    assert abs(int(flipped.sum()) - 200) < 45
