"""A problem with three inputs on which ERM, IRM and REx differ."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment, Metadata, register
from oodbench.tasks import Task

P_X = {"1": (0.4, 0.1), "2": (0.1, 0.4), "3": (0.1, 0.4), "test": (0.25, 0.25)}
"""P(x = 0) and P(x = 1); P(x = 2) is 1/2 everywhere."""
P_Y = {"1": 0.1, "2": 0.1, "3": 0.2, "test": 0.9}
"""P(y = 1 | x = 2); it is 1/2 for x = 0 and 3/4 for x = 1 everywhere."""
EXAMPLES = 80
"""The number of examples of an environment, such that every frequency is a whole number of examples."""


@register(
    "ThreeInputs",
    Metadata(
        paper="arXiv:2003.00688",
        licence="generated",
        family="linear",
        shift="P(x) of two inputs, P(y | x) of the third",
        network="Linear",
        steps=2000,
    ),
)
class ThreeInputs(Dataset):
    """Predict y from x in {0, 1, 2}, one-hot, where P(y | x = 0 or 1) is the same everywhere.

    The discrete example in the code of Krueger et al.: the examples have exactly the probabilities of the
    distribution. ERM predicts (1/2, 3/4, the mean of P(y | x = 2)), IRM (1/2, 3/4, 1/2) and REx, which the
    shift in P(x) misleads, (1/2, 1/2, 1/2). The test environment is not from the paper.
    """

    environments = tuple(P_X)
    test_environments = ("test",)
    input_shape = (3,)
    task = Task("binary")
    repeats = True

    def load(self, trial: int) -> dict[str, Environment]:
        """Inputs (80, 3) and labels (80,) of each environment, the same in every trial."""
        return {name: self._environment(name) for name in self.environments}

    def _environment(self, name: str) -> Environment:
        p_x = torch.tensor([*P_X[name], 0.5], dtype=torch.double)
        p_y = torch.tensor([0.5, 0.75, P_Y[name]], dtype=torch.double)
        joint = torch.stack([p_x * (1 - p_y), p_x * p_y], 1)
        counts = (joint * EXAMPLES).round().long().flatten()
        pairs = torch.tensor(list(itertools.product(range(3), range(2))))
        x, y = pairs.repeat_interleave(counts, 0).unbind(1)
        return Environment(torch.eye(3)[x], y.float())

    def predictor_metrics(
        self, predict: Callable[[Tensor], Tensor], trial: int
    ) -> dict[str, float]:
        """The predicted P(y = 1 | x) as `p_0`, `p_1` and `p_2`."""
        probabilities = predict(torch.eye(3)).sigmoid().flatten().tolist()
        return {f"p_{x}": p for x, p in enumerate(probabilities)}
