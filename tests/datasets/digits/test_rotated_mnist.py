import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from oodbench.datasets import make, permutation
from tests.conftest import MNIST


def raw(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """All images and digits, read without our code."""
    names = list(MNIST)
    images = [np.fromfile(folder / "MNIST" / "raw" / names[i], np.uint8)[16:] for i in (0, 2)]
    digits = [np.fromfile(folder / "MNIST" / "raw" / names[i], np.uint8)[8:] for i in (1, 3)]
    return np.concatenate(images).reshape(-1, 28, 28), np.concatenate(digits)


@pytest.mark.nightly
def test_every_image_is_in_one_environment(mnist_dir: Path) -> None:
    images, digits = raw(mnist_dir)
    environments = make("DomainBedColoredMNIST", {}, mnist_dir).load(0)
    assert [len(e.y) for e in environments.values()] == [23334, 23333, 23333]
    found = torch.cat([e.x.sum(1) for e in environments.values()])
    seen = np.sort((found.flatten(1) * 255).round().numpy().astype(np.int64).sum(1))
    assert np.array_equal(seen, np.sort(images.reshape(70_000, -1).astype(np.int64).sum(1)))
    rotated = make("RotatedMNIST", {}, mnist_dir).load(0)
    counts = torch.bincount(torch.cat([e.y for e in rotated.values()]))
    assert counts.tolist() == np.bincount(digits).tolist()
    assert [len(e.y) for e in rotated.values()] == [11667] * 4 + [11666] * 2


@pytest.mark.nightly
def test_rotations_are_torchvisions(mnist_dir: Path) -> None:
    dataset = make("RotatedMNIST", {}, mnist_dir)
    environments = dataset.load(3)
    images, digits = raw(mnist_dir)
    order = permutation(dataset, 70_000, 3)
    for i, (name, environment) in enumerate(environments.items()):
        for place in (0, 1, 5000):
            source = order[i::6][place]
            image = rotate(
                Image.fromarray(images[source]), float(name), InterpolationMode.BILINEAR, fill=[0]
            )
            expected = torch.from_numpy(np.array(image)).float() / 255
            assert torch.equal(environment.x[place, 0], expected)
            assert environment.y[place] == digits[source]
    assert environments["0"].x.shape == (11667, *dataset.input_shape)


def test_labels_and_colours_have_domainbeds_probabilities(mnist_dir: Path) -> None:
    dataset = make("DomainBedColoredMNIST", {}, mnist_dir)
    environments = dataset.load(1)
    images, digits = raw(mnist_dir)
    order = permutation(dataset, 70_000, 1)
    wanted = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
    for i, (name, environment) in enumerate(environments.items()):
        filled = environment.x.flatten(2).amax(2) > 0
        assert (filled.sum(1) == 1).all()
        clean = torch.from_numpy(digits)[order[i::3]] < 5
        count = len(clean)
        flipped = (environment.y != clean.long()).double().mean().item()
        contradicted = (filled.long().argmax(1) != environment.y).double().mean().item()
        for observed, p in ((flipped, 0.25), (contradicted, wanted[name])):
            assert abs(observed - p) < 4.5 * math.sqrt(p * (1 - p) / count)
        image = torch.from_numpy(images[order[i::3][7]]).float() / 255
        assert torch.equal(environment.x[7].sum(0), image)
    assert environment.x.shape[1:] == dataset.input_shape and environment.y.dtype == torch.int64


@pytest.mark.nightly
def test_trials_differ_and_repeat(mnist_dir: Path) -> None:
    dataset = make("DomainBedColoredMNIST", {}, mnist_dir)
    first, same, other = (dataset.load(trial)["+90%"] for trial in (0, 0, 1))
    assert torch.equal(first.x, same.x) and torch.equal(first.y, same.y)
    assert not torch.equal(first.y, other.y)
