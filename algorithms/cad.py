"""Contrastive adversarial domain bottlenecks: features from which the environment cannot be told."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import choice, hparam

BASE_TEMPERATURE = 0.07
NEGLIGIBLE = -80.0
"""Exponents are clamped at this distance below the largest, as exponentials that underflow take a hundred
times as long."""


@register("CAD", paper="arXiv:2201.00057")
class CAD(Algorithm):
    """Mean risk, with features whose nearest neighbours come from other environments.

    With p_ij the softmax over j != i of phi_i . phi_j / temperature, over all examples of the batch, the
    penalty is temperature / 0.07 * mean_i -log sum_{j: e_j != e_i} p_ij: the contrastive estimate of p(e |
    phi), in the form that raises the share of the other environments. Constants are those of
    arXiv:2007.01434's code, which leaves out examples whose class has no other example in the batch and
    drops infinite terms; here all terms are finite. The cost is quadratic in the size of the batch.
    """

    needs = Needs(environments=2, feature_vector=True)
    changes = "penalty"
    conditional = False

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults and ranges: arXiv:2007.01434's code."""

        penalty_weight: float = hparam(0.1, choice(1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2), low=0.0)
        temperature: float = hparam(0.1, choice(0.05, 0.1), low=1e-3)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out the penalty, which is ERM."""
        return {"penalty_weight": 0.0}

    def objective(self, out: Outputs) -> Tensor:
        """Mean risk plus the weighted penalty."""
        penalty = self.penalty(out)
        out.metrics["penalty"] = penalty.detach()
        return out.risks.mean() + self.hparams.penalty_weight * penalty

    def penalty(self, out: Outputs) -> Tensor:
        """The mean over the examples that have a partner in another environment; 0 if there are none."""
        environments, examples = out.losses.shape
        features = out.features.flatten(0, 1)
        lowest = torch.finfo(features.dtype).min / 4  # finite, so that no gradient is NaN
        scores = (features / self.hparams.temperature) @ features.mT
        scores = torch.where(self.compared(out), scores, lowest)
        by_environment = logsumexp(torch.unflatten(scores, 1, (environments, examples)))
        places = torch.arange(environments, device=features.device).repeat_interleave(examples)
        is_own = places[:, None] == torch.arange(environments, device=features.device)
        others = torch.where(is_own, lowest, by_environment).logsumexp(1)
        terms = by_environment.logsumexp(1) - others
        has_partner = others > lowest / 2
        mean = torch.where(has_partner, terms, 0.0).sum() / has_partner.sum().clamp(min=1)
        return self.hparams.temperature / BASE_TEMPERATURE * mean

    def compared(self, out: Outputs) -> Tensor:
        """Mask (E * B, E * B) of the compared pairs: each example with all others."""
        count = out.losses.numel()
        return ~torch.eye(count, dtype=torch.bool, device=out.losses.device)


@register("CondCAD", paper="arXiv:2201.00057")
class CondCAD(CAD):
    """CAD within each class: examples are compared with those of the same class.

    In p_ij and in CAD's sum, j runs over the examples with y_j = y_i. The mean leaves out examples whose
    class occurs in no other environment of the batch.
    """

    needs = Needs(environments=2, feature_vector=True, classes=True)

    def compared(self, out: Outputs) -> Tensor:
        """Mask (E * B, E * B) of the pairs of different examples of the same class."""
        targets = out.targets.flatten()
        return super().compared(out) & (targets[:, None] == targets)


def logsumexp(x: Tensor) -> Tensor:
    """logsumexp over the last dimension, to a relative error of about e^NEGLIGIBLE; finite for finite x."""
    largest = x.amax(-1, keepdim=True).detach()
    return (x - largest).clamp(min=NEGLIGIBLE).exp().sum(-1).log() + largest.squeeze(-1)
