"""Invariant-feature subspace recovery from covariances."""

from itertools import combinations

import torch
from torch import Tensor

from oodbench.algorithms import register

from .isr import ISR


@register("ISR_Cov", paper="arXiv:2201.12919")
class ISRCov(ISR):
    """Logistic regression without the directions in which a class's covariances differ most.

    For a class and a pair of environments the directions are the d_s eigenvectors of C_i - C_j with the
    largest absolute eigenvalues (algorithm 2), C the covariance of a sample. Their flag mean over all
    classes and pairs is left out: the first d_s eigenvectors of the sum of their projections, as in the
    authors' code for the unit tests. Environments with fewer than two examples of a class do not count.
    """

    def directions(self, of_class: list[list[Tensor]], count: int) -> Tensor:
        """The flag mean over classes and pairs."""
        features = of_class[0][0].shape[1]
        total = of_class[0][0].new_zeros(features, features)
        for members in of_class:
            covariances = [z.mT.cov() for z in members if len(z) > 1]
            for a, b in combinations(covariances, 2):
                eigen = torch.linalg.eigh((a - b).reshape(features, features))
                v = eigen.eigenvectors[:, eigen.eigenvalues.abs().argsort(descending=True)[:count]]
                total = total + v @ v.mT
        largest: Tensor = torch.linalg.eigh(total).eigenvectors[:, features - count :]
        return largest * (total.abs().sum() > 0)  # without any pair, nothing is left out
