"""Methods that know how many training examples each class or group has."""

from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Problem
from oodbench.networks.base import Network


def training_counts(problem: Problem, over: str = "classes") -> Tensor:
    """How many training examples each class has, (C,), or each group, (G,); 1 where that is not known.

    Environments count alike, as in a step: N times the mean over environments of the shares in each. With
    one environment, or several of the same size, these are the numbers of examples.
    """
    classes, values = problem.task.classes, max(1, problem.attributes)
    if not problem.counts:
        return torch.ones(classes * (values if over == "groups" else 1))
    total = sum(map(sum, problem.counts)) / len(problem.counts)
    shares = [[count / sum(row) for count in row] for row in problem.counts]
    counts = torch.tensor([total * sum(column) for column in zip(*shares, strict=True)])
    return counts if over == "groups" else counts.view(classes, -1).sum(1)


class Counted(Algorithm):
    """A method with the sizes of the classes, or of the groups where its hyperparameter `over` says so."""

    changes = "group"
    counts: Tensor

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        counts = training_counts(problem, getattr(hparams, "over", "classes"))
        self.register_buffer("counts", counts, persistent=False)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Ask for classes, by which examples are counted."""
        return (
            super().skip(problem) if problem.task.has_classes else "it counts examples of classes"
        )
