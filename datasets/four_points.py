"""Four points that can be memorised one by one, or explained by a shared coordinate."""

from collections.abc import Callable

import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment, Metadata, register
from oodbench.tasks import Task

from .linear_sem import named_weights


@register(
    "FourPoints",
    Metadata(
        paper="arXiv:2009.00329",
        licence="generated",
        family="linear",
        shift="a coordinate of its own for each environment",
        network="Linear",
        steps=1000,
    ),
)
class FourPoints(Dataset):
    """Regression on one example an environment: the target is 1 and x_e = 3 (e_e + 0.1 e_5).

    The linear example in the notebook of Parascandolo et al.: (1/3, 1/3, 1/3, 1/3, 0) combines the
    coordinates of single environments, (0, 0, 0, 0, 10/3) uses the coordinate that all share. The
    notebook's loss is half the squared error. `test`, which the notebook lacks, has the shared coordinate
    alone.
    """

    environments = ("1", "2", "3", "4", "test")
    test_environments = ("test",)
    holdout = 0.0  # an environment's one example cannot be split
    input_shape = (5,)
    task = Task("regression")

    def load(self, trial: int) -> dict[str, Environment]:
        """An input (1, 5) and a target (1, 1) of each environment, the same in every trial."""
        own_coordinates = torch.cat([3 * torch.eye(4), torch.zeros(1, 4)])
        x = torch.cat([own_coordinates, torch.full((5, 1), 0.3)], 1)
        rows = zip(self.environments, x, strict=True)
        return {name: Environment(row[None], torch.ones(1, 1)) for name, row in rows}

    def predictor_metrics(
        self, predict: Callable[[Tensor], Tensor], trial: int
    ) -> dict[str, float]:
        """The weights of a linear predictor, `weight_1` to `weight_5`."""
        return named_weights(predict, [f"weight_{i}" for i in range(1, 6)])
