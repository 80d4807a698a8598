"""Colored MNIST with a test environment for every strength of the colour."""

from dataclasses import dataclass
from pathlib import Path

from oodbench.datasets import Metadata, register
from oodbench.hparams import hparam

from .colored_mnist import CHECKSUMS, ColoredMNIST


@register(
    "ProbedColoredMNIST",
    Metadata(
        paper="arXiv:2003.00688",
        licence="CC BY-SA 3.0 (MNIST)",
        family="small_images",
        shift="how often the colour contradicts the label",
        network="MLP",
        steps=500,
        checksums=CHECKSUMS,
    ),
)
class ProbedColoredMNIST(ColoredMNIST):
    """The training environments of `ColoredMNIST` and test environments on a line with them.

    The risk plane of Krueger et al. (figure 2; figure 5.2 of the thesis): the first 50,000 images are
    divided between the first two environments, for training, the last 10,000 among all others, which show
    how risk and accuracy change with the probability that the colour contradicts the label.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(ColoredMNIST.Options):
        """The colours of the two training environments, then those of the probes."""

        flips: tuple[float, ...] = hparam((0.2, 0.1, 0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1))

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.test_environments = self.environments[2:]
