"""Invariant-feature subspace recovery from means."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import register
from oodbench.hparams import choice, hparam

from .isr import ISR


@register("ISR_Mean", paper="arXiv:2201.12919")
class ISRMean(ISR):
    """Logistic regression without the directions in which a class's mean features differ most.

    With mu_e the mean features of the chosen class in environment e, the first d_s principal components of
    mu_1, ..., mu_E are left out (algorithm 1). E means have E - 1 components: if d_s is larger, the
    authors' code for the unit tests leaves out arbitrary directions in addition; here none are added.
    Environments without the class do not count.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(ISR.Hparams):
        """The class whose means are compared: 1 in the authors' unit tests."""

        chosen_class: int = hparam(1, choice(0, 1), low=0, high=1)

    def directions(self, of_class: list[list[Tensor]], count: int) -> Tensor:
        """The first right singular vectors of the centred means."""
        chosen = of_class[self.hparams.chosen_class]
        empty = chosen[0].new_zeros(0, chosen[0].shape[1])
        means = torch.stack([empty.sum(0), *(z.mean(0) for z in chosen if len(z))])[1:]
        centred = means - means.mean(0) if len(means) else empty
        rows: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh
        return rows[: min(count, max(0, len(means) - 1))].mT
