"""Laplacian adjusted maximum-likelihood estimation."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.adaptations.base import HeadAdaptation, register
from oodbench.hparams import choice, hparam

STEPS = 100
"""The most iterations; they stop earlier if the objective's relative change is below `TOLERANCE`."""
TOLERANCE = 1e-8


@register("LAME", paper="arXiv:2201.05718")
class LAME(HeadAdaptation):
    """Predictions that agree within a batch where features are close; no parameter changes.

    The predictions y_i of a batch start at the network's p_i (plus 1e-10, as in the authors' code) and
    iterate

        y_i = softmax(log p_i + sum_j w_ij y_j),

    (eq. 9), which decreases sum_i KL(y_i || p_i) - sum_ij w_ij y_i' y_j (eq. 5). The logits are log y_i.
    The affinity w_ij of unit-length features z is 1 if j is one of the `neighbours` nearest inputs to i,
    other than i, and else 0 (`knn`); exp(-|z_i - z_j|^2 / (2 sigma^2)), with sigma the mean distance to the
    `neighbours`-th nearest input, counting i as the first (`rbf`); or z_i' z_j (`linear`).
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(HeadAdaptation.Hparams):
        """The values that the authors search over; they find knn with 5 neighbours best."""

        affinity: str = hparam(
            "knn", choice("knn", "rbf", "linear"), options=("knn", "rbf", "linear")
        )
        neighbours: int = hparam(5, choice(1, 3, 5), low=1)

    def logits(self, x: Tensor) -> Tensor:
        """The logarithms of the adjusted predictions."""
        features, logits = self.features_and_logits(x)
        start = (logits.softmax(1) + 1e-10).log()
        affinity = self.affinities(F.normalize(features, dim=1))
        result, before = start.log_softmax(1), float("inf")
        for step in range(STEPS):
            pairs = affinity @ result.exp()
            result = (start + pairs).log_softmax(1)
            # as in the authors' code, `pairs` still belongs to the predictions before the step
            now = float((result.exp() * (result - start - pairs)).sum())
            if step > 1 and abs(now - before) <= TOLERANCE * abs(before):
                break
            before = now
        return result

    def affinities(self, features: Tensor) -> Tensor:
        """The affinities (n, n) of unit-length features (n, F)."""
        count = self.hparams.neighbours
        if self.hparams.affinity == "linear":
            return features @ features.T
        # by differences: rounding in |a|^2 + |b|^2 - 2 a'b could change which neighbours are nearest
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
        if self.hparams.affinity == "rbf":
            nearest = distances.topk(min(count, len(features)), largest=False).values
            sigma = nearest[:, -1].mean().clamp(min=1e-12)  # a single input has distance 0
            return (-(distances**2) / (2 * sigma**2)).exp()
        nearest = distances.topk(min(count + 1, len(features)), largest=False).indices[:, 1:]
        return torch.zeros_like(distances).scatter_(1, nearest, 1.0)
