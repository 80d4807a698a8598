"""Variance risk extrapolation."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Needs, Outputs, register
from oodbench.hparams import hparam, log_uniform

from .penalized import Penalized, summed_risks_decay


@register("VREx", paper="arXiv:2003.00688")
class VREx(Penalized):
    """Mean risk plus the variance of the training environments' risks (V-REx, eq. 8).

    This is the population variance over the E environments of a step (see `environments_per_step`). The
    paper sums the risks: its beta is E * penalty_weight. Its code for Colored MNIST adds w (R_1 - R_2)^2
    and l ||theta||^2 to R_1 + R_2 and divides the whole by w; halved, for mean risks, this is
    penalty_weight = 2 w, initial_weight = 2 and weight_decay = l.
    """

    needs = Needs(environments=2)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """The defaults and ranges of arXiv:2007.01434; for small images those of the paper's code.

        There w = 1e4 and l = 1e-3, as in the code of IRM, whose search has w from 1e2 to 1e6.
        """

        initial_weight: float = hparam(1.0, low=0.0, by_family={"small_images": (2.0, None)})
        penalty_weight: float = hparam(
            10.0,
            log_uniform(1e-1, 1e5),
            low=0.0,
            by_family={"small_images": (2e4, log_uniform(2e2, 2e6))},
        )
        weight_decay: float = summed_risks_decay()

    def penalty(self, out: Outputs) -> Tensor:
        """The population variance of the risks."""
        return out.risks.var(correction=0)
