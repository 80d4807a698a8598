"""The focal loss."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import hparam, log_uniform


@register("Focal", paper="arXiv:1708.02002")
class Focal(Algorithm):
    """The mean loss, with less weight on examples whose class is already probable.

    (1 - p)^gamma l, p = exp(-l) the probability of the example's class (eq. 4); gamma = 0 is ERM. The
    paper's weights of classes (its alpha) are those of `ReWeight` and its relatives.
    """

    changes = "group"
    needs = Needs(classes=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """SubpopBench's default and range (arXiv:2302.12254); the paper's detector uses 2."""

        gamma: float = hparam(1.0, log_uniform(0.5, 5.0), low=0.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """gamma = 0, with which all examples count equally."""
        return {"gamma": 0.0}

    def objective(self, out: Outputs) -> Tensor:
        """The mean of (1 - p)^gamma l; 1 - p is kept above 0, where the power has no derivative."""
        rest = -torch.expm1(-out.losses)
        rest = rest.clamp(min=torch.finfo(rest.dtype).tiny)
        return (rest**self.hparams.gamma * out.losses).mean()
