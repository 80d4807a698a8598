"""Colored digits whose inputs say how often the colour contradicts the label in their environment."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from oodbench.datasets import Environment, Metadata, register
from oodbench.hparams import hparam

from .colored_digits import ColoredDigits


@register(
    "InformedDigits",
    Metadata(
        paper="arXiv:2510.04441",
        licence="CC BY 4.0 (UCI optdigits)",
        family="small_images",
        shift="how often the colour contradicts the label, which inputs tell",
        network="MLP",
        steps=500,
    ),
)
class InformedDigits(ColoredDigits):
    """`ColoredDigits` with an additional channel for the environment's `flips`: domain-informed ERM.

    Domain-informed ERM (arXiv:2510.04441) is ERM of a predictor f(x, m) of an input and of what is known
    about its domain, also the test domain. Only the inputs differ, so any method can be informed. Here m is
    how often the colour contradicts the label, and the best answer changes with it (posterior drift).
    Pooled ERM, with `informed: false`, has a channel of zeros on the same examples. Inputs are (3, 8, 8).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(ColoredDigits.Options):
        """More environments than Colored MNIST's, so that their number can be learned from."""

        flips: tuple[float, ...] = hparam((0.1, 0.3, 0.5, 0.7, 0.9))
        """How often the colour contradicts the label, by environment; the last is the test one."""
        informed: bool = hparam(True)
        """Whether the additional channel holds the environment's number, or zeros."""

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.input_shape = (1 + self.input_shape[0], *self.input_shape[1:])

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial, as `ColoredDigits` has them, with the channel."""
        environments = super().load(trial)
        for name, flip in zip(self.environments, self.options.flips, strict=True):
            x = environments[name].x
            assert isinstance(x, torch.Tensor)
            channel = torch.full_like(x[:, :1], flip if self.options.informed else 0.0)
            environments[name] = replace(environments[name], x=torch.cat([x, channel], 1))
        return environments
