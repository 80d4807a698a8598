"""Inter-environmental gradient alignment."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import hparam, log_uniform


@register("IGA", paper="arXiv:2008.01883")
class IGA(Algorithm):
    """Mean risk plus the sum over environments of the squared distance of a gradient to their mean.

    R + penalty_weight * sum_e |g_e - mean g|^2 with g_e the gradient of R_e with respect to all of the
    network's parameters (the trace of its variance over environments, times their number). Constants are
    those of arXiv:2007.01434's code. The gradients take an extra forward and backward pass
    (`risk_gradients`).
    """

    needs = Needs(environments=2, outputs=True)
    changes = "penalty"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434's code."""

        penalty_weight: float = hparam(1000.0, log_uniform(1e1, 1e5), low=0.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out the penalty, which is ERM."""
        return {"penalty_weight": 0.0}

    def objective(self, out: Outputs) -> Tensor:
        """The objective R + penalty_weight * sum_e |g_e - mean g|^2."""
        half = out.risks.new_zeros(())
        for g in self.risk_gradients(out).values():
            away = (g - g.mean(0)).detach()  # sums to 0 over environments, so <away, g> is |away|^2
            half = half + torch.dot(away.flatten(), g.flatten())
        penalty = 2 * half - half.detach()
        out.metrics["penalty"] = penalty.detach()
        return out.risks.mean() + self.hparams.penalty_weight * penalty
