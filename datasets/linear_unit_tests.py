"""The linear unit tests of invariance discovery: six problems with an invariant and a spurious half."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment, Metadata, register
from oodbench.hparams import hparam
from oodbench.tasks import Task

DIM = 5
"""The number of invariant inputs, and of spurious ones."""
SCALES = (0.1, 1.5, 2.0)
"""Example 1: the noise's standard deviation in the first environments."""
SHARES = ((0.95, 0.3), (0.97, 0.5), (0.99, 0.7))
"""Example 2: how often the background agrees with the animal, and the share of cows, in the first ones."""


@register(
    "LinearUnitTests",
    Metadata(
        paper="arXiv:2102.10867",
        licence="generated",
        family="linear",
        shift="the relation of the spurious inputs to the target",
        network="Head",
        steps=10_000,
        hparams={"lr": 1e-3},
    ),
)
class LinearUnitTests(Dataset):
    """Linear problems whose spurious inputs are easier to use than the invariant ones.

    Aubin et al., section 3, after their code. Inputs are an invariant block x and a spurious block z
    of 5 each, times a random rotation if `scrambled`.

    - Example 1 (regression): x = N(0, s^2), y = x W_xy + N(0, s^2), z = y W_yz + N(0, 1) with
      an environment's s; the weights are N(0, 1) / 5, and the target is the sum of y.
    - Example 2 (cows and camels): x = 0.01 (a + N(0, 1/10)), z = b + N(0, 1/10) with a = 1 for
      cows and -1 for camels, b = 1 for grass and -1 for sand. A share s are cows, and the background
      agrees with the animal with probability p. The target is whether the sum of x is above 0.
    - Example 3: x = N(c / 10, 1/100), z = N(c mu, 1/100) with c = 1 for the class 0 and -1 for the
      class 1, half of each, and an environment's mu = N(0, 1).

    Each training environment E0, E1, ... has further draws `E0-validation` for selection and `E0-test`,
    in which z is shuffled over the examples, so that it is independent of the target; `oracle` shuffles
    it everywhere. From the fourth environment on s is 10^U(-2, 1) in Example 1, and p is U(0.9, 1),
    s U(0.3, 0.7) in Example 2. `scrambled` and `oracle` do not change what a trial draws.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Dataset.Options):
        """The problem, and its sizes."""

        example: int = hparam(1, options=(1, 2, 3))
        scrambled: bool = hparam(False)
        num_environments: int = hparam(3, low=2)
        oracle: bool = hparam(False)
        num_examples: int = hparam(10_000, low=2)
        """The number of examples of each draw of each environment."""

    options: Options

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        names = tuple(f"E{e}" for e in range(options.num_environments))
        self.validation_environments = tuple(f"{name}-validation" for name in names)
        self.test_environments = tuple(f"{name}-test" for name in names)
        self.evaluation_environments = self.validation_environments + self.test_environments
        self.environments = names + self.evaluation_environments
        self.input_shape = (2 * DIM,)
        self.task = Task("regression" if options.example == 1 else "binary")

    def load(self, trial: int) -> dict[str, Environment]:
        """Inputs (N, 10) and targets, (N, 1) in Example 1, else (N,), of each environment."""
        rotation = torch.eye(2 * DIM, dtype=torch.double)
        if self.options.scrambled:
            generator = self.generator(trial, self.options.example, "rotation")
            rotation = torch.linalg.qr(self._normal(generator, 2 * DIM, 2 * DIM)).Q
        environments = {}
        for name in self.environments:
            number = int(name.partition("-")[0].removeprefix("E"))
            generator = self.generator(trial, self.options.example, name)
            x, z, y = self._examples(trial, number, generator)
            order = torch.randperm(len(z), generator=generator)
            if self.options.oracle or name in self.test_environments:
                z = z[order]
            environments[name] = Environment((torch.cat([x, z], 1) @ rotation).float(), y.float())
        return environments

    def _normal(self, generator: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.double)

    def _examples(
        self, trial: int, number: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x and z, (N, 5) each, and the targets of the environment with a given number."""
        n = self.options.num_examples
        of_environment = self.generator(trial, self.options.example, "environment", number)
        first, second = torch.rand(2, generator=of_environment, dtype=torch.double).tolist()
        noise_x, noise_z = self._normal(generator, 2, n, DIM)
        if self.options.example == 1:
            scale = SCALES[number] if number < len(SCALES) else 10 ** (3 * first - 2)
            weights = self.generator(trial, self.options.example, "weights")
            xy, yz = self._normal(weights, 2, DIM, DIM) / DIM
            x = scale * noise_x
            y = x @ xy + scale * self._normal(generator, n, DIM)
            return x, y @ yz + noise_z, y.sum(1, keepdim=True)
        if self.options.example == 2:
            drawn = 0.9 + 0.1 * first, 0.3 + 0.4 * second
            agree, cows = SHARES[number] if number < len(SHARES) else drawn
            uniform = torch.rand(2, n, 1, generator=generator, dtype=torch.double)
            animal = torch.where(uniform[0] < cows, 1.0, -1.0)
            background = torch.where(uniform[1] < agree, animal, -animal)
            x = 0.01 * (animal + noise_x / 10**0.5)
            return x, background + noise_z / 10**0.5, x.sum(1) > 0
        y = torch.arange(n) >= n / 2
        sign = torch.where(y, -1.0, 1.0).unsqueeze(1)
        mu = self._normal(of_environment, DIM)
        return 0.1 * (sign + noise_x), sign * mu + 0.1 * noise_z, y
