"""Losses weighted by the number of training examples of each class or group."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Needs, Outputs, Problem, register
from oodbench.hparams import hparam, log_uniform

from .counted import Counted


class Reweighted(Counted, ABC):
    """The mean of w_g l over the examples of a step, g being the class or the group of an example.

    The weights of all G classes or groups have mean 1, and empty ones have weight 0, as in SubpopBench
    (arXiv:2302.12254). A subclass implements `group_weights`.
    """

    needs = Needs(attributes={"over": "groups"}, classes=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Counted.Hparams):
        """The groups whose sizes count: classes, or pairs of class and attribute."""

        over: str = hparam("classes", options=("classes", "groups"), neutral="classes")

    @abstractmethod
    def group_weights(self) -> Tensor:
        """Unnormalised weights (G,) of the classes or groups; those of empty ones are ignored."""

    def objective(self, out: Outputs) -> Tensor:
        """The mean weighted loss."""
        weights = torch.where(self.counts > 0, self.group_weights(), 0.0)
        weights = weights / weights.mean()
        group = out.targets.long()
        if self.hparams.over == "groups":
            assert out.batch.attributes is not None
            group = out.task.groups(group, out.batch.attributes, self.problem.attributes)
        return (weights[group] * out.losses).mean()


@register("ReWeight", paper="Japkowicz, The class imbalance problem (2000)")
class ReWeight(Reweighted):
    """The mean loss, with weights inversely proportional to the size of an example's class or group.

    w_g = 1 / n_g: what `sampling: rwy` and `rwg` do in expectation, without drawing an example twice.
    """

    def group_weights(self) -> Tensor:
        """1 / n_g."""
        return 1 / self.counts


@register("SqrtReWeight", paper="arXiv:2302.12254")
class SqrtReWeight(Reweighted):
    """The mean loss, with weights inversely proportional to the square root of the class or group size.

    w_g = 1 / sqrt(n_g), as in SubpopBench.
    """

    def group_weights(self) -> Tensor:
        """1 / sqrt(n_g)."""
        return self.counts.rsqrt()


@register("CBLoss", paper="arXiv:1901.05555")
class CBLoss(Reweighted):
    """The mean loss, with weights inversely proportional to the effective number of a class's examples.

    w_g = (1 - beta) / (1 - beta^n_g) with beta = (N - 1) / N (eq. 2 and 3); N is `volume`: 1 is ERM, and a
    large volume is `ReWeight`. The paper's and SubpopBench's default of beta, 0.9999, is a volume of
    10,000.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Reweighted.Hparams):
        """SubpopBench's default and range of beta, 1 - 10^U(-5, -2)."""

        volume: float = hparam(1e4, log_uniform(1e2, 1e5), low=1.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """A volume of 1, with which all effective numbers are 1."""
        return {"volume": 1.0, "over": "classes"}

    def group_weights(self) -> Tensor:
        """1 / (1 - beta^n_g), which loses no digits where beta is close to 1."""
        log_beta = torch.log1p(-1 / (self.hparams.volume * torch.ones_like(self.counts)))
        return -1 / torch.expm1(self.counts * log_beta)
