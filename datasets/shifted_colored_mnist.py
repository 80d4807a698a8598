"""Colored MNIST whose training environments also differ in classes, digits or shades."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from oodbench.datasets import Environment, Metadata, permutation, register
from oodbench.errors import UserError
from oodbench.hparams import hparam

from .colored_mnist import CHECKSUMS, IMAGES, LABELS, NUM_TRAIN, ColoredMNIST, read_mnist

DIGITS = {
    "class": (((5, 6, 7, 8, 9),), ((0, 1, 2, 3, 4),)),
    "digit": (((1, 2), (6, 7)), ((3, 4), (8, 9))),
}
"""Groups of digits: an environment keeps a share P of the first and 1 - P of the second."""


@register(
    "ShiftedColoredMNIST",
    Metadata(
        paper="arXiv:2003.00688",
        licence="CC BY-SA 3.0 (MNIST)",
        family="small_images",
        shift="how often the colour contradicts the label, and which inputs there are",
        network="MLP",
        steps=500,
        checksums=CHECKSUMS,
    ),
)
class ShiftedColoredMNIST(ColoredMNIST):
    """Two training environments with different inputs, and a test environment between them.

    The covariate shifts of Krueger et al., section 4.1 (figure 5.4 of the thesis), after their code.
    With P = `share` in the first training environment, 1 - `share` in the second and 1/2 in the test
    environment, an environment keeps

    - `class`: the share P of the digits 5 to 9 and 1 - P of the digits 0 to 4;
    - `digit`: the share P of the digits 1, 2, 6, 7 and 1 - P of 3, 4, 8, 9, but no 0 and no 5;
    - `colour`: everything, with two shades of each colour: four channels; colour 0 takes
      the first with probability P and the second otherwise, colour 1 the third with probability
      1 - P and the fourth otherwise.

    `share` is the axis of the paper's figure, from 0 (disjoint inputs) to 1/2 (no shift); its code's
    flag is share / (1 - share). Labels and colours come after, as in `ColoredMNIST`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(ColoredMNIST.Options):
        """The property that differs between the training environments, and by how much."""

        imbalance: str = hparam("class", options=("class", "digit", "colour"))
        share: float = hparam(0.5, low=0.0, high=1.0)

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        if len(self.environments) != 3:
            raise UserError(f"'flips' in the options of {self.name} must be three numbers")
        if options.imbalance == "colour" and not options.grayscale:
            self.input_shape = (4, 14, 14)

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial; raises UserError if a file is missing or damaged."""
        images, digits = read_mnist(self.file(IMAGES), self.file(LABELS))
        order = permutation(self, NUM_TRAIN, trial)
        parts = [order[::2], order[1::2], torch.arange(NUM_TRAIN, len(images))]
        shares = [self.options.share, 1 - self.options.share, 0.5]
        environments = {}
        for i, (part, share) in enumerate(zip(parts, shares, strict=True)):
            kept = part[self._kept(digits[part], share)]
            colored = self.colored(i, images[kept], digits[kept], trial)
            if colored.x.shape[1] < self.input_shape[0]:
                generator = self.generator(trial, self.environments[i], "shade")
                colored = replace(colored, x=self._shaded(colored.x, share, generator))
            environments[self.environments[i]] = colored
        return environments

    def _kept(self, digits: Tensor, share: float) -> Tensor:
        """Mask (N,) of the images that an environment keeps: the first of every group of digits."""
        if self.options.imbalance == "colour":
            return torch.ones(len(digits), dtype=torch.bool)
        kept = torch.zeros(len(digits), dtype=torch.bool)
        for groups, part in zip(DIGITS[self.options.imbalance], (share, 1 - share), strict=True):
            for group in groups:
                index = torch.isin(digits, torch.tensor(group)).nonzero().squeeze(1)
                kept[index[: int(part * len(index))]] = True
        return kept

    @staticmethod
    def _shaded(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
        draws = torch.rand(len(x), generator=generator)
        shape = (-1, 1, 1, 1)
        first, third = (draws < share).view(shape), (draws < 1 - share).view(shape)
        zero, one = x[:, :1], x[:, 1:]
        return torch.cat([zero * first, zero * ~first, one * third, one * ~third], 1)
