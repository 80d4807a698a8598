"""Laplacian adjusted maximum-likelihood estimation."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.adaptations.base import HeadAdaptation, register
from oodbench.hparams import choice, hparam

STEPS = 100
"""The most steps on a batch, and the relative change of the objective at which they end before."""
TOLERANCE = 1e-8


@register("LAME", paper="arXiv:2201.05718")
class LAME(HeadAdaptation):
    """Predictions of a batch that are alike where features are; no parameter changes.

    The predictions y_i of a batch's inputs, beginning with the network's p_i, are a fixed point of (eq. 9)

        y_i = softmax(log p_i + sum_j w_ij y_j),

    which decreases sum_i KL(y_i || p_i) - sum_ij w_ij y_i' y_j (eq. 5). The affinity w_ij of features of
    unit length is 1 where j is one of the `neighbours` nearest to i and not i (`knn`), or
    exp(-|z_i - z_j|^2 / (2 sigma^2)), sigma the mean distance to the `neighbours`-th nearest, i itself
    the first (`rbf`), or z_i' z_j (`linear`). The logits are log y_i. As in the authors' code 1e-10 is
    added to p_i, and a step may end before the objective is at rest, after 100.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(HeadAdaptation.Hparams):
        """The values among which the authors choose by validation (their best: knn, 5)."""

        affinity: str = hparam(
            "knn", choice("knn", "rbf", "linear"), options=("knn", "rbf", "linear")
        )
        neighbours: int = hparam(5, choice(1, 3, 5), low=1)

    def logits(self, x: Tensor) -> Tensor:
        """The logarithms of the batch's adjusted predictions."""
        features, logits = self.features_and_logits(x)
        start = (logits.softmax(1) + 1e-10).log()
        affinity = self.affinities(F.normalize(features, dim=1))
        result, before = start.log_softmax(1), float("inf")
        for step in range(STEPS):
            pairs = affinity @ result.exp()
            result = (start + pairs).log_softmax(1)
            # as in the authors' code, the pairs are those of the predictions before the step
            now = float((result.exp() * (result - start - pairs)).sum())
            if step > 1 and abs(now - before) <= TOLERANCE * abs(before):
                break
            before = now
        return result

    def affinities(self, features: Tensor) -> Tensor:
        """The affinities (n, n) of features of unit length."""
        count = self.hparams.neighbours
        if self.hparams.affinity == "linear":
            return features @ features.T
        # not by products, whose rounding would choose among near neighbours
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
        if self.hparams.affinity == "rbf":
            nearest = distances.topk(min(count, len(features)), largest=False).values
            sigma = nearest[:, -1].mean().clamp(min=1e-12)  # it is 0 of one input
            return (-(distances**2) / (2 * sigma**2)).exp()
        nearest = distances.topk(min(count + 1, len(features)), largest=False).indices[:, 1:]
        return torch.zeros_like(distances).scatter_(1, nearest, 1.0)
