"""What datasets do to a batch on the device sends no more than what was drawn, and waits for nothing."""

import torch

from oodbench.data.pictures.augment import domainbed
from oodbench.datasets import IMAGENET
from tests.device.pretend import DEVICE, on_device

DRAWN = 3 + 2 * 4 + 1
"""What `domainbed` sends: boxes, flips, what becomes grey, orders with their amounts, the last order."""


def test_augmentation_sends_what_it_draws() -> None:
    with on_device() as watch:
        for seed in range(2):
            watch.forget()
            x = torch.empty(6, 3, 16, 16, device=DEVICE)
            found = domainbed(x, torch.Generator().manual_seed(seed))
            assert found.device.type == DEVICE
    assert not watch.others
    assert watch.copies == DRAWN


def test_a_normalization_goes_to_the_device_once() -> None:
    with on_device() as watch:
        x = torch.empty(6, 3, 16, 16, device=DEVICE)
        IMAGENET.on(x.device)
        watch.forget()
        mean, std = IMAGENET.on(x.device)
        found = (x - mean) / std
    assert found.device.type == DEVICE and not watch.crossings
