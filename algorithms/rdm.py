"""Risk distribution matching."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Needs, Outputs, register
from oodbench.hparams import hparam, uniform

from .burn_in import BurnIn
from .mmd import gaussian_kernels

GAMMAS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
"""The factors g of the Gaussian kernels on losses (the paper's code)."""


@register("RDM", paper="arXiv:2310.18598")
class RDM(BurnIn):
    """Mean risk, with the worst environment's losses distributed like the losses of all environments.

    After a burn-in R + penalty_weight * MMD^2 + variance_weight * (Var + Var') is minimised, where MMD^2
    compares the examples' losses in the environment with the largest risk with those in all environments,
    itself included: the biased estimate with kernels sum_g exp(-g (l - l')^2), g = 1e-4, 1e-3, ..., 1e3.
    Var and Var' are the unbiased variances of these two sets of losses (0 for a single loss). The paper's
    code searches ranges that depend on the dataset, including batch sizes of 70 to 100; here all datasets
    have its usual ranges, and the batch sizes of all methods.
    """

    changes = "penalty"
    needs = Needs(environments=2)  # to match with the worst

    @dataclass(frozen=True, kw_only=True)
    class Hparams(BurnIn.Hparams):
        """The registry of arXiv:2007.01434's code, its numbers of steps over its 5,001."""

        penalty_weight: float = hparam(5.0, uniform(0.1, 10.0), low=0.0)
        variance_weight: float = hparam(0.004, uniform(0.001, 0.007), low=0.0)
        burn_in: int | float = hparam(1500 / 5001, uniform(800 / 5001, 2700 / 5001), low=0)
        lr_after: float = hparam(1.5e-5, uniform(8e-6, 2e-5), low=0.0)

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk, plus the penalties after the burn-in."""
        environments, examples = out.losses.shape
        places = torch.arange(environments, device=out.losses.device)
        worst = (places == out.risks.argmax()).to(out.losses.dtype)
        signed = (worst - 1 / environments).repeat_interleave(examples) / examples
        losses = out.losses.flatten()
        distances = (losses.unsqueeze(1) - losses).square()
        matching = signed @ gaussian_kernels(distances, GAMMAS) @ signed
        of_worst = worst @ out.losses.var(1, correction=min(1, examples - 1))
        variances = losses.var(correction=min(1, len(losses) - 1)) + of_worst
        h = self.hparams
        penalty = h.penalty_weight * matching + h.variance_weight * variances
        out.metrics["penalty"] = penalty.detach()
        return out.risks.mean() + self.burnt_in(out.step) * penalty
