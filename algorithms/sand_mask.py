"""The SAND-mask: a smoothed AND-mask."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Problem, register
from oodbench.hparams import hparam, log_uniform, uniform

PIECE = 2**17
"""Elements of the stacked gradients processed at a time, so that they stay in the processor's cache."""


@register("SANDMask", paper="arXiv:2106.02266")
class SANDMask(Algorithm):
    """The mean gradient, weighted by how much signs and magnitudes agree across environments.

    A component's weight is max(0, tanh(k / var_e(g_e) * (|mean_e sign(g_e)| - tau))), with the
    unbiased variance; each tensor is divided by its mean weight. This is arXiv:2007.01434's code with
    two differences. Its default tau = 1 weights everything by zero, and no parameter ever moves: here
    it is 0.5. Where the variance is zero and the agreement tau, the weight is 0 and not 1e-17.
    """

    changes = "gradient"
    needs = Needs(environments=2)  # the variance needs two

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Ranges, and the default of k: arXiv:2007.01434's code."""

        tau: float = hparam(0.5, uniform(0.0, 1.0), low=0.0, high=1.0)
        k: float = hparam(10.0, log_uniform(1e-3, 1e5), low=1e-6)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """None: even at tau = 0 the weights differ between components."""
        return None

    def combine(self, gradients: Tensor) -> Tensor:
        """The weighted mean of the environments' gradients (E, *shape) of one parameter."""
        columns = gradients.reshape(len(gradients), -1)
        pieces = torch.split(columns, max(1, PIECE // len(columns)), 1)
        parts = zip(*map(self.weights_and_means, pieces), strict=True)
        weights, means = (torch.cat(part) for part in parts)
        combined = weights * means / (1e-10 + weights.mean())
        return combined.view(gradients.shape[1:])

    def weights_and_means(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the means of the environments' gradients (E, P) of P components, (P,) each."""
        mean = gradients.mean(0)
        variance = (gradients - mean).square().sum(0) / (len(gradients) - 1)
        excess = gradients.sign().mean(0).abs() - self.hparams.tau
        weights = (self.hparams.k / variance * excess).tanh()
        return torch.where(excess > 0, weights, 0.0), mean
