"""Colored MNIST's construction on scikit-learn's scans of digits."""

import importlib.util
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from oodbench.datasets import Environment, Metadata, dealt, register
from oodbench.hparams import hparam

from .colored_mnist import ColoredImages


@register(
    "ColoredDigits",
    Metadata(
        paper="arXiv:1907.02893",
        licence="CC BY 4.0 (UCI optdigits)",
        family="small_images",
        shift="how often the colour contradicts the label",
        network="MLP",
        steps=500,
    ),
)
class ColoredDigits(ColoredImages):
    """Colored MNIST on 1,797 real 8x8 scans of digits, which need no download.

    The scans are those of `sklearn.datasets.load_digits`, divided at random in each trial, so that
    environments (599 scans each) share none. For each of a scan's `copies`, label noise and colour are
    drawn separately: with a single copy a network memorises the label noise. Copies stay on one side of a
    split. Inputs are (2, 8, 8). See `ColoredImages` for labels and colours.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(ColoredImages.Options):
        """The noise, and the number of its draws for a scan."""

        copies: int = hparam(10, low=1)

    options: Options
    repeats = True

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir, side=8)

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial; `clusters` are the numbers of the scans."""
        images, digits = read_digits()
        environments = {}
        for i, (name, numbers) in enumerate(dealt(self, len(images), trial).items()):
            scans = numbers.repeat_interleave(self.options.copies)
            colored = self.colored(i, images[scans], digits[scans], trial)
            environments[name] = replace(colored, clusters=scans)
        return environments


@lru_cache(maxsize=1)
def read_digits() -> tuple[Tensor, Tensor]:
    """The scans, (1797, 8, 8) in [0, 1], and their digits, (1797,)."""
    # the file that sklearn.datasets.load_digits reads, without a second of scikit-learn's imports
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None, "a dependency of oodbench"
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = torch.tensor(np.loadtxt(file, delimiter=","))
    return table[:, :-1].reshape(-1, 8, 8).float() / 16, table[:, -1].long()
