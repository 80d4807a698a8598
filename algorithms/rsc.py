"""Representation self-challenging."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from oodbench.algorithms import Algorithm, Needs, Outputs, register
from oodbench.hparams import hparam, uniform
from oodbench.tasks import Task


def target_scores(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """Each example's logit of its target, (...), from logits (..., C); with a single logit z, z or -z."""
    if task.kind == "binary":
        return (2 * targets - 1) * logits.squeeze(-1)
    return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def target_probabilities(task: Task, logits: Tensor, targets: Tensor) -> Tensor:
    """Each example's probability of its target, (...)."""
    if task.kind == "binary":
        return target_scores(task, logits, targets).sigmoid()
    return target_scores(task, logits.softmax(-1), targets)


def among_largest(values: Tensor, share: Any) -> Tensor:
    """Mask of the `values` (..., n) that are at least the quantile 1 - share along the last axis.

    True for floor(share (n - 1)) + 1 of n distinct values: at `share` 0 for the largest alone.
    """
    n = values.shape[-1]
    place = torch.as_tensor(share * (n - 1) + 1e-4).floor().long()
    if not isinstance(share, Tensor):  # a single run, not a vectorized program
        return values >= values.topk(int(place) + 1).values[..., -1:]  # 3 times as fast as a sort
    ordered = values.sort(-1, descending=True).values
    place = place.expand(*values.shape[:-1], 1)
    return values >= ordered.gather(-1, place)


@register("RSC", paper="arXiv:2007.02454")
class RSC(Algorithm):
    """The mean risk without the features on which each prediction depends most.

    With g the gradient of the target's logit with respect to the features (eq. 1), the coordinates of each
    example whose g is among the largest `feature_share` are muted (eqs. 2 and 3). Only the `batch_share` of
    the examples whose target's probability drops most stay muted. As in arXiv:2007.01434's code the
    features are one vector; the paper also mutes positions of a feature map, and lets the batch's share
    grow with the epochs. The masks are constants of the gradient. Examples of all environments are ranked
    together. A classifier with dropout draws again in each pass.
    """

    changes = "step"
    needs = Needs(classes=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults and ranges: arXiv:2007.01434, D.2."""

        feature_share: float = hparam(1 / 3, uniform(0.0, 0.5), low=0.0, high=1.0)
        batch_share: float = hparam(1 / 3, uniform(0.0, 0.5), low=0.0, high=1.0)

    def objective(self, out: Outputs) -> Tensor:
        """The mean loss on the muted features."""
        task, targets, classifier = out.task, out.targets, self.network.classifier
        features = out.features.detach()
        g = grad(lambda phi: target_scores(task, classifier(phi), targets).sum())(features)
        muted = among_largest(g.detach(), self.hparams.feature_share)
        kept = torch.where(muted, 0.0, features)
        before = target_probabilities(task, out.logits, targets)
        drop = before - target_probabilities(task, classifier(kept), targets)
        challenged = among_largest(drop.detach().flatten(), self.hparams.batch_share)
        muted = muted & challenged.view(drop.shape).unsqueeze(-1)
        logits = classifier(torch.where(muted, 0.0, out.features))
        return task.losses(logits, targets).mean()
