"""Spectral decoupling."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Needs, Outputs, register
from oodbench.hparams import hparam, log_uniform

from .penalized import Penalized


@register("SD", paper="arXiv:2011.09468")
class SD(Penalized):
    """Mean risk plus a penalty on the size of the logits, against gradient starvation.

    R + penalty_weight * the mean over examples and outputs of the squared logits z. The paper has
    lambda / 2 ||z||^2 summed over an example's C outputs: its lambda is 2 * penalty_weight / C. Its code
    for Colored MNIST has the weight 2e-5 for 450 steps and 2e-5 (R + mean z^2) from then on, which is
    initial_weight = 2e-5, anneal_steps = 450, penalty_weight = 1 with `divide_by_weight`.
    """

    needs = Needs(outputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """Default and range: arXiv:2007.01434's registry; there is no annealing."""

        penalty_weight: float = hparam(0.1, log_uniform(1e-5, 1e-1), low=0.0)
        anneal_steps: int | float = hparam(0, low=0)
        divide_by_weight: bool = hparam(False)

    def penalty(self, out: Outputs) -> Tensor:
        """The mean squared logit."""
        return out.logits.square().mean()
