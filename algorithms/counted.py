"""Methods that know how many training examples each class or group has."""

from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Problem
from oodbench.networks.base import Network


def training_counts(problem: Problem, over: str = "classes") -> Tensor:
    """Training examples of each class, (C,), or each group, (G,); all 1 if they are unknown.

    Environments count equally, as in a step: counts are the total number times the mean share over
    environments. With one environment, or several of the same size, these are the numbers of examples.
    """
    classes, values = problem.task.classes, max(1, problem.attributes)
    if not problem.counts:
        return torch.ones(classes * (values if over == "groups" else 1))
    total = sum(map(sum, problem.counts)) / len(problem.counts)
    shares = [[count / sum(row) for count in row] for row in problem.counts]
    counts = torch.tensor([total * sum(column) for column in zip(*shares, strict=True)])
    return counts if over == "groups" else counts.view(classes, -1).sum(1)


class Counted(Algorithm):
    """A method that knows the sizes of the classes, or of the groups with `over: groups`."""

    changes = "group"
    needs = Needs(classes=True)
    counts: Tensor

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        counts = training_counts(problem, getattr(hparams, "over", "classes"))
        self.register_buffer("counts", counts, persistent=False)
