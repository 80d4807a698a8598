"""Rotated MNIST's construction on scikit-learn's scans of digits."""

from dataclasses import dataclass

import scipy
import torch

from oodbench.datasets import Dataset, Environment, Metadata, dealt, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

from .colored_digits import read_digits

DEGREES = (0, 15, 30, 45, 60, 75)


@register(
    "RotatedDigits",
    Metadata(
        paper="arXiv:2007.01434",
        licence="CC BY 4.0 (UCI optdigits)",
        family="small_images",
        shift="the angle of the digits",
        network="MLP",
        steps=400,
    ),
)
class RotatedDigits(Dataset):
    """1,797 real 8x8 scans of digits, rotated by 0 to 75 degrees; they need no download.

    The scans are those of `sklearn.datasets.load_digits`, divided at random in each trial, so that
    environments (299 or 300 scans each) share none. Inputs are (1, 8, 8) in [0, 1], rotated anticlockwise
    about their centre, bilinearly, black outside. Larger angles than in training are held out: 60 degrees
    for validation, 75 for the test.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """The angles of the environments."""

        as_test: bool = hparam(False)
        """Whether every environment is rotated like the test environment, for a ceiling."""

    options: Options
    environments = tuple(str(degree) for degree in DEGREES)
    validation_environments = ("60",)
    test_environments = ("75",)
    input_shape = (1, 8, 8)
    task = Task("multiclass", 10)
    classes = tuple("0123456789")

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial."""
        images, digits = read_digits()
        environments = {}
        for name, scans in dealt(self, len(images), trial).items():
            angle = DEGREES[-1] if self.options.as_test else int(name)
            turned = scipy.ndimage.rotate(
                images[scans].numpy(), angle, axes=(2, 1), reshape=False, order=1
            )
            x = torch.from_numpy(turned).clamp(0, 1).unsqueeze(1)
            environments[name] = Environment(x, digits[scans].long())
        return environments
