"""The first example of the paper on invariant risk minimization, in the form of a well-known notebook."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment, Metadata, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

from .linear_sem import named_weights

SCALES = {"0.1": 0.1, "1": 1.0, "test 0.01": 0.01, "test 0.1": 0.1, "test 1": 1.0}
"""The scale s of the noise by environment."""


@register(
    "IRMExample",
    Metadata(
        paper="arXiv:1907.02893",
        licence="generated",
        family="linear",
        shift="the scale of the noise",
        network="Linear",
        steps=2000,
    ),
)
class IRMExample(Dataset):
    """Regression on two causes X and two effects Z of a target, for noise of the scale s.

    Example 1 of Arjovsky et al. in two dimensions: X = s N(0, 1), Y = X + s N(0, 1) and
    Z = Y + N(0, 1), (N, 2) each. Inputs are (X, Z), the target is the sum of Y's columns. The error of
    the causal weights (1, 1, 0, 0) is 2 s^2. Pooled least squares on s = 0.1 and 1 gives
    (0.66445, 0.66445, 0.33555, 0.33555) in the limit.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """The number of examples of each environment."""

        num_examples: int = hparam(10_000, low=1)

    options: Options
    environments = tuple(SCALES)
    test_environments = tuple(name for name in SCALES if name.startswith("test"))
    input_shape = (4,)
    task = Task("regression")

    def load(self, trial: int) -> dict[str, Environment]:
        """Inputs (N, 4) and targets (N, 1) of each environment."""
        environments = {}
        for name, scale in SCALES.items():
            generator = self.generator(trial, name)
            noise = torch.randn(3, self.options.num_examples, 2, generator=generator)
            x = scale * noise[0]
            y = x + scale * noise[1]
            inputs = torch.cat([x, y + noise[2]], 1)
            environments[name] = Environment(inputs, y.sum(1, keepdim=True))
        return environments

    def predictor_metrics(
        self, predict: Callable[[Tensor], Tensor], trial: int
    ) -> dict[str, float]:
        """The weights of a linear predictor: `weight_x1`, `weight_x2`, `weight_z1`, `weight_z2`."""
        return named_weights(predict, ("weight_x1", "weight_x2", "weight_z1", "weight_z2"))
