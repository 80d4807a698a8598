"""The AND-mask over environments."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Algorithm, Problem, register
from oodbench.hparams import hparam, uniform


@register("ANDMask", paper="arXiv:2009.00329")
class ANDMask(Algorithm):
    """The mean gradient, kept only in the components whose signs agree across environments.

    Section 3: a component is kept if |mean_e sign(g_e)| >= tau, with sign(0) = 0. Agreement is
    counted in whole environments: a net count of at least tau * E. With `rescale` each tensor is
    divided by the fraction it kept (the released code; arXiv:2007.01434's code always does). With
    `geometric_mean` the kept components take the geometric mean of the magnitudes. The weight
    decay joins after the mask and before the optimizer's moments.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Range of tau: arXiv:2007.01434's code."""

        tau: float = hparam(1.0, uniform(0.5, 1.0), low=0.0, high=1.0)
        rescale: bool = hparam(True)
        geometric_mean: bool = hparam(False)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Agreement needs two environments."""
        if len(problem.environments) < 2:
            return "the agreement of gradients needs at least two training environments"
        return None

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """tau = 0 keeps every component."""
        return {"tau": 0.0}

    def combine(self, gradients: Tensor) -> Tensor:
        """The masked mean of the environments' gradients (E, *shape) of one parameter."""
        agreement = gradients.sign().sum(0).abs()
        mask = agreement >= self.hparams.tau * len(gradients) - 1e-4
        mean = gradients.mean(0)
        if self.hparams.geometric_mean:
            magnitude = (gradients.abs() + 1e-10).log().mean(0).exp()
            mean = mean.sign() * magnitude
        kept: Tensor = mask * mean
        if self.hparams.rescale:
            kept = kept / (1e-10 + mask.to(kept.dtype).mean())
        return kept
