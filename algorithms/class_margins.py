"""Losses whose logits are shifted by the classes' numbers of training examples: LDAM, BSoftmax."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.algorithms import Outputs, Problem, register
from oodbench.hparams import choice, hparam, log_uniform

from .counted import Counted


def class_logits(out: Outputs) -> Tensor:
    """The logits (E, B, C); in a binary task the two classes have the logits 0 and the network's."""
    return F.pad(out.logits, (1, 0)) if out.task.kind == "binary" else out.logits


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of logits (E, B, C) of all classes."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().long())


@register("LDAM", paper="arXiv:1906.07413")
class LDAM(Counted):
    """The mean loss after a margin is subtracted from the logit of the true class, larger for rare classes.

    Cross-entropy of scale * (z - m_y e_y), m_c = max_margin (min_k n_k / n_c)^(1/4) (eq. 13 and 14, and the
    paper's code). As in SubpopBench (arXiv:2302.12254), and unlike in the paper's code, the last layer is
    not normalised, and there are no later class weights (DRW).
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Counted.Hparams):
        """SubpopBench's."""

        max_margin: float = hparam(0.5, log_uniform(1e-1, 10**-0.1), low=0.0)
        scale: float = hparam(30.0, choice(10.0, 30.0), low=1e-6)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out the margin, and do not scale the logits."""
        return {"max_margin": 0.0, "scale": 1.0}

    def objective(self, out: Outputs) -> Tensor:
        """The mean loss of the scaled logits with margins."""
        counts = torch.where(self.counts > 0, self.counts, torch.inf)
        margins = self.hparams.max_margin * (counts.amin() / counts) ** 0.25
        logits = class_logits(out)
        is_class = F.one_hot(out.targets.long(), logits.shape[-1])
        return mean_loss(self.hparams.scale * (logits - margins * is_class), out.targets)


@register("BSoftmax", paper="arXiv:2007.10740")
class BSoftmax(Counted):
    """The mean loss of a softmax in which every class counts by its number of training examples.

    Balanced softmax: cross-entropy of z_c + log n_c (eq. 3); predictions are those of z. With
    classes of the same size it is ERM.
    """

    def objective(self, out: Outputs) -> Tensor:
        """The mean loss of the logits plus the logarithms of the classes' sizes."""
        return mean_loss(class_logits(out) + self.counts.log(), out.targets)
