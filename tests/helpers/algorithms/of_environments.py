"""Methods that depend on the names of the training environments, read in either place."""

from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, register


def weights_of(names: Any) -> Tensor:
    return torch.tensor([sum(map(ord, name)) % 7 + 1.0 for name in names])


@register("KeepsNames", paper="none")
class KeepsNames(Algorithm):
    """Risks weighted by what a plain attribute keeps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.weights = weights_of(self.problem.environments)

    def objective(self, out: Outputs) -> Tensor:
        return (out.risks * self.weights).sum()


@register("ReadsNames", paper="none")
class ReadsNames(Algorithm):
    """Risks weighted by what each step reads."""

    def objective(self, out: Outputs) -> Tensor:
        return (out.risks * weights_of(self.problem.environments)).sum()
