"""Two interleaved spirals with a shortcut that every environment encodes differently."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from oodbench.datasets import Dataset, Environment, Metadata, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

TEST = "test"


@register(
    "Spirals",
    Metadata(
        paper="arXiv:2009.00329",
        licence="generated",
        family="synthetic",
        shift="the shortcut's sign pattern; in the test environment it says nothing",
        network="MLP",
        steps=600,
    ),
)
class Spirals(Dataset):
    """Spirals (the mechanism) with a shortcut that is linear but differs between environments.

    The synthetic memorization set of Parascandolo et al., section 4.1, with the sizes and scales
    of the commands that its authors released. Inputs are (2 + shortcut_dims,): the point on the
    spiral and the shortcut. The second class is the arm rotated by 180 degrees, everywhere. In a
    training environment the shortcut is +s for one class and -s for the other, with a signature s
    that is drawn once per environment; in `test` it is noise. Pooled environments can be
    memorised; only the spirals carry over.

    An environment depends on the trial, its name and the sizes alone. The draws are in the order of
    the released code, without the signatures that it draws and does not use.

    The paper's text says 32 environments, 32 shortcut dimensions, 1280 examples and N(0, 0.1)
    shortcuts next to raw spirals: `num_environments: 32, shortcut_dims: 32, num_examples: 1280,
    shortcut_scale: 0.1, standardize: false`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """Sizes and scales; the defaults are those of the released code."""

        num_environments: int = hparam(16, low=1, high=10_000)
        num_validation: int = hparam(0, low=0, high=10_000)
        """The number of further environments, each with a signature, that are held out for selection."""
        num_examples: int = hparam(1024, low=2)
        """The number of examples of every environment except `test`."""
        num_test_examples: int = hparam(2000, low=2)
        shortcut_dims: int = hparam(16, low=0)
        shortcut_scale: float = hparam(1.0, low=0.0)
        """The standard deviation of the shortcut's coordinates."""
        standardize: bool = hparam(True)
        """Divide each coordinate of the spirals by its standard deviation in the environment."""
        num_revolutions: int = hparam(3, low=0)
        as_test: bool = hparam(False, neutral=False)
        """Whether the shortcut is noise everywhere, as in the test environment, for a ceiling."""

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        validation = tuple(f"validation{i}" for i in range(options.num_validation))
        training = tuple(str(i) for i in range(options.num_environments))
        self.environments = (*training, *validation, TEST)
        self.test_environments = (TEST,)
        self.validation_environments = validation
        self.input_shape = (2 + options.shortcut_dims,)
        self.task = Task("binary")

    def load(self, trial: int) -> dict[str, Environment]:
        """Inputs (N, 2 + shortcut_dims) and labels (N,) of each environment."""
        return {name: self._environment(name, trial) for name in self.environments}

    def _environment(self, name: str, trial: int) -> Environment:
        o = self.options
        random = np.random.RandomState(self.seed(trial, name) % 2**32)
        count = o.num_test_examples if name == TEST else o.num_examples
        signature = random.randn(o.shortcut_dims)
        radius = random.uniform(0.08, 1, count)
        label = random.randint(0, 2, count)
        angle = 2 * np.pi * o.num_revolutions * radius + np.pi * label
        radius = radius + random.uniform(-0.02, 0.02, count)
        mechanism = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        if o.standardize:
            mechanism /= mechanism.std(0)
        if name == TEST or o.as_test:
            shortcut = random.randn(count, o.shortcut_dims)
        else:
            shortcut = np.outer(2 * label - 1, signature)
        x = np.concatenate([mechanism, o.shortcut_scale * shortcut], 1)
        return Environment(torch.tensor(x).float(), torch.tensor(label).float())
