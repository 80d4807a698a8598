"""Scans of digits on stripes that usually agree with the label: minority groups, as in Waterbirds."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment, Metadata, dealt, numbered_environments, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

from .colored_digits import read_digits

AGREEMENT = (0.95, 0.85, 0.5, 0.1)
"""How often the background agrees with the label, by environment; the last is the test environment."""


@register(
    "DigitsOnBackgrounds",
    Metadata(
        paper="arXiv:1911.08731",
        licence="CC BY 4.0 (UCI optdigits)",
        family="small_images",
        shift="how often the background contradicts the label",
        network="MLP",
        steps=400,
    ),
)
class DigitsOnBackgrounds(Dataset):
    """Is the digit below five? The construction of Waterbirds (Sagawa et al.) on 8x8 scans and stripes.

    The 1,797 scans of `sklearn.datasets.load_digits` are divided at random in each trial, so that
    environments (449 or 450 scans each) share none. Behind a digit are stripes, `contrast` bright, with a
    random phase: upright where the background agrees with the label, level where it does not. The share of
    agreeing backgrounds names an environment: by default 0.95 and 0.85 in training, so that a group of a
    label and a background may have few examples there, 0.5 for validation and 0.1 in the test. Labels have
    no noise. Inputs are (1, 8, 8) in [0, 1]; the attribute of an example is its background.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """The backgrounds."""

        agreement: tuple[float, ...] = hparam(AGREEMENT, neutral=AGREEMENT)
        """How often the background agrees with the label, by environment; the last is the test environment,
        the one before is for validation."""
        contrast: float = hparam(0.6, low=0.0, high=1.0)
        as_test: bool = hparam(False)
        """Whether backgrounds are as in the test environment everywhere, for a ceiling."""

    options: Options
    input_shape = (1, 8, 8)
    task = Task("binary")
    attributes = ("level stripes", "upright stripes")
    classes = ("five and above", "below five")

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.environments = numbered_environments(self, "agreement", least=3)
        self.validation_environments = self.environments[-2:-1]
        self.test_environments = self.environments[-1:]

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial."""
        images, digits = read_digits()
        environments = {}
        for i, (name, scans) in enumerate(dealt(self, len(images), trial).items()):
            agreement = self.options.agreement[-1 if self.options.as_test else i]
            noise = self.generator(trial, name)
            label = digits[scans] < 5
            contradicts = torch.rand(len(scans), generator=noise) >= agreement
            upright = label ^ contradicts
            stripes = self.options.contrast * _stripes(upright, noise)
            x = torch.maximum(images[scans], stripes).unsqueeze(1)
            environments[name] = Environment(x, label.float(), attributes=upright.long())
        return environments


def _stripes(upright: Tensor, generator: torch.Generator) -> Tensor:
    """Stripes (N, 8, 8) in [0, 1] with a period of 4 pixels and random phases."""
    phase = 2 * math.pi * torch.rand(len(upright), 1, generator=generator)
    wave = (1 + torch.sin(math.pi / 2 * torch.arange(8) + phase)) / 2
    across = wave[:, None, :].expand(-1, 8, 8)
    return torch.where(upright[:, None, None], across, across.mT)
