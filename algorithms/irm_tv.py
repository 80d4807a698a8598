"""Invariant risk minimization as a total variation model."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Needs, Outputs, register
from oodbench.hparams import altered, hparam

from .irm import IRM
from .penalized import Penalized


@register("IRM_TV", paper="arXiv:2405.01389")
class IRM_TV(Penalized):
    """Mean risk plus the squared mean of the sizes of the risks' gradients in a scale of the classifier.

    IRM-TV-l1: mean_e R_e + weight (mean_e |d/dw R_e(w * logits) at w = 1|)^2, where IRMv1 has the mean of
    the squares: an environment with a small gradient is pulled as hard as one with a large gradient, which
    is the total variation's l1 norm. The gradient is in closed form (`Task.scale_gradients`). As in the
    authors' code the weight is 0 before `anneal_steps`; with `divide_by_weight` that code divides by
    1 + weight instead of the weight. Two of its variants are left out: for small batches sqrt |g g'| of the
    gradients of two halves in place of |g|, whose slope is infinite where one of them is 0, and the
    inference of environments by a second network.
    """

    needs = Needs(outputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """Ranges: IRM's, as the authors give no search; on small images their code's default."""

        initial_weight: float = hparam(0.0, low=0.0)
        penalty_weight: float = altered(IRM.Hparams, "penalty_weight", {})

    def penalty(self, out: Outputs) -> Tensor:
        """The square of the mean over environments of the scale gradients' absolute values."""
        gradients = out.task.scale_gradients(out.logits, out.targets)
        return gradients.mean(1).abs().mean().square()
