"""T3A: test-time template adjustment."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.adaptations.base import HeadAdaptation, of_two_classes, register
from oodbench.hparams import choice, hparam


@register("T3A", paper="NeurIPS 2021, Iwasawa and Matsuo")
class T3A(HeadAdaptation):
    """A linear head whose weights become means of confident test features.

    The support set S_k of class k starts with the head's weights w_k / |w_k|. Each test feature z is added,
    as z / |z|, to the set of the class that the trained head predicts (eq. 4). Each set keeps the
    `supports` elements with the least entropy of the head's prediction (eq. 6). The logit of class k is
    z'c_k, where c_k is the normalised sum over S_k (eqs. 5 and 7). As in the authors' code a batch is added
    before it is predicted, and w_k is in the set of the class that the head predicts for w_k.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(HeadAdaptation.Hparams):
        """The values of the authors' search; their code writes -1 for all, and then drops one element."""

        supports: int = hparam(20, choice(1, 5, 20, 50, 100, 0), low=0)
        """The most elements of a class's support set; 0: no limit."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        weight = of_two_classes(self.head.weight.detach().T).T
        self.supports = F.normalize(weight, dim=1)
        scores = weight @ weight.T
        if self.head.bias is not None:
            scores = scores + of_two_classes(self.head.bias.detach()[None])
        self.classes, self.entropies = scores.argmax(1), entropy(scores)

    def logits(self, x: Tensor) -> Tensor:
        """The products of the batch's features and the templates that include the batch."""
        features, logits = self.features_and_logits(x)
        supports = torch.cat([self.supports, F.normalize(features, dim=1)])
        classes = torch.cat([self.classes, logits.argmax(1)])
        entropies = torch.cat([self.entropies, entropy(logits)])
        kept = self._least(classes, entropies, logits.shape[1])
        self.supports, self.classes, self.entropies = supports[kept], classes[kept], entropies[kept]
        members = F.one_hot(self.classes, logits.shape[1]).to(features.dtype)
        templates = F.normalize(self.supports.T @ members, dim=0)
        return features @ templates

    def _least(self, classes: Tensor, entropies: Tensor, count: int) -> Tensor:
        order = entropies.argsort(stable=True)
        of_classes = [order[classes[order] == k] for k in range(count)]
        most = self.hparams.supports or None
        return torch.cat([indices[:most] for indices in of_classes])


def entropy(logits: Tensor) -> Tensor:
    """The entropy (n,) of the softmax of logits (n, C)."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
