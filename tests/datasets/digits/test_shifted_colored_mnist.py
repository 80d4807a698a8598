from pathlib import Path

import torch

from oodbench.datasets import make, permutation
from tests.datasets.digits.test_colored_mnist import near, read

PARTS = {"0.2": 0.3, "0.1": 0.7, "0.9": 0.5}
"""The share of each environment with `share` 0.3."""


def counts(mnist_dir: Path, **options: object) -> dict[str, tuple[int, list[int]]]:
    """Examples of each environment, and of each digit in the images that it is dealt."""
    _, digits = read(mnist_dir)
    dataset = make("ShiftedColoredMNIST", options, mnist_dir)
    order = permutation(dataset, 50_000, 0)
    dealt = {"0.2": digits[order[::2]], "0.1": digits[order[1::2]], "0.9": digits[50_000:]}
    return {
        name: (len(e.x), torch.bincount(dealt[name], minlength=10).tolist())
        for name, e in dataset.load(0).items()
    }


def test_classes_are_kept_by_their_shares(mnist_dir: Path) -> None:
    for name, (size, dealt) in counts(mnist_dir, imbalance="class", share=0.3).items():
        part = PARTS[name]
        assert size == int(part * sum(dealt[5:])) + int((1 - part) * sum(dealt[:5]))


def test_digits_are_kept_by_their_shares(mnist_dir: Path) -> None:
    for name, (size, dealt) in counts(mnist_dir, imbalance="digit", share=0.3).items():
        part = PARTS[name]
        shares = {(1, 2): part, (6, 7): part, (3, 4): 1 - part, (8, 9): 1 - part}
        expected = sum(int(p * (dealt[a] + dealt[b])) for (a, b), p in shares.items())
        assert size == expected


def test_the_classes_shift_and_labels_and_colours_come_after(mnist_dir: Path) -> None:
    options = {"imbalance": "class", "share": 0.1}
    environments = make("ShiftedColoredMNIST", options, mnist_dir).load(0)
    for name, below_five in (("0.2", 0.9), ("0.1", 0.1), ("0.9", 0.5)):
        e = environments[name]
        share = below_five * 0.75 + (1 - below_five) * 0.25
        assert abs(e.y.mean().item() - share) < 0.02
        color = e.x.flatten(2).amax(2).argmax(1)
        assert near(color != e.y, float(name))


def test_shades_split_the_colours(mnist_dir: Path) -> None:
    options = {"imbalance": "colour", "share": 0.1}
    environments = make("ShiftedColoredMNIST", options, mnist_dir).load(0)
    plain = make("ColoredMNIST", {}, mnist_dir).load(0)
    for name, part in (("0.2", 0.1), ("0.1", 0.9), ("0.9", 0.5)):
        e = environments[name]
        assert e.x.shape == (len(plain[name].x), 4, 14, 14)
        filled = e.x.flatten(2).amax(2) > 0
        assert (filled.sum(1) == 1).all()
        channel = filled.long().argmax(1)
        assert near(channel[channel < 2] == 0, part)
        assert near(channel[channel >= 2] == 2, 1 - part)
        assert near((channel >= 2).float() != e.y, float(name))
