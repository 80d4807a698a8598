"""Empirical quantile risk minimisation."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Needs, Outputs, register
from oodbench.hparams import hparam, log_uniform, uniform

from .burn_in import BurnIn

SECTIONS, ROUNDS = 64, 4
"""The quantile's bracket shrinks to 1 / SECTIONS in each of ROUNDS, before Newton's method."""

FLAT = 1e-6
"""The least density in a Newton step, as a share of a kernel's peak, between distant risks."""


@register("EQRM", paper="arXiv:2207.09944")
class EQRM(BurnIn):
    """A quantile of the distribution of risks over environments, after a burn-in with their mean.

    Algorithm 1: the distribution is a Gaussian kernel density on the training environments' risks R_1, ...,
    R_E, with the bandwidth h = 1.06 sigma E^(-1/5) for their unbiased standard deviation sigma; the
    objective is q with mean_e Phi((q - R_e) / h) = quantile. Its derivative is that of the implicit
    function: dq/dR_e is proportional to phi((q - R_e) / h) for fixed h. With `bisection_gradient` it is
    that of the paper's code, which finds q by bisection: q counts as a fixed point between the ends R_min +
    h z and R_max + h z, Phi(z) = quantile, so that the other environments matter only through h. A
    `quantile` a below 0 stands for 1 - exp(a), in the code's approximation mean_e R_e + h sqrt(-2 a). If
    all risks are equal, h = 0 and the quantile is this risk.

    After the burn-in the optimizer restarts at `lr_after` in every draw; in arXiv:2007.01434's code only at
    the defaults, as its random burn-ins are not integers.
    """

    needs = Needs(environments=2)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(BurnIn.Hparams):
        """arXiv:2007.01434's registry, its numbers of steps over its 5,001."""

        quantile: float = hparam(0.75, uniform(0.5, 0.99), high=0.999999)
        burn_in: int | float = hparam(
            2500 / 5001, log_uniform(10**2.5 / 5001, 10**3.5 / 5001), low=0
        )
        lr_after: float = hparam(1e-6, log_uniform(1e-7, 1e-5), low=0.0)
        bisection_gradient: bool = hparam(False)

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk; after the burn-in the quantile."""
        quantile = out.risks.new_zeros(()) + self.hparams.quantile
        count = len(out.risks)
        variance = out.risks.var(correction=min(1, count - 1))
        tiny = torch.finfo(variance.dtype).tiny
        h = 1.06 * count**-0.2 * variance.clamp(min=tiny).sqrt()
        inside = kernel_quantile(
            out.risks, h, quantile.clamp(min=1e-6), self.hparams.bisection_gradient
        )
        far = out.risks.mean() + h * (-2 * quantile.clamp(max=0)).sqrt()
        value = torch.where(quantile < 0, far, inside)
        out.metrics["quantile"] = value.detach()
        mean = out.risks.mean()
        return mean + self.burnt_in(out.step) * (value - mean)


def kernel_quantile(risks: Tensor, h: Tensor, level: Tensor, bisection_gradient: bool) -> Tensor:
    """The `level`-quantile of a Gaussian kernel density on the risks (E,), with bandwidth h > 0.

    It is between the quantiles of the kernels at the smallest and at the largest risk.
    """
    z = torch.special.ndtri(level)
    low, high = risks.min() + h * z, risks.max() + h * z
    with torch.no_grad():
        left, width = low, high - low
        places = torch.linspace(0, 1, SECTIONS + 1, dtype=risks.dtype, device=risks.device)[1:-1]
        for _ in range(ROUNDS):
            points = left + width * places
            share = torch.special.ndtr((points.unsqueeze(1) - risks) / h).mean(1)
            left, width = left + width * (share < level).sum() / SECTIONS, width / SECTIONS
        root = _newton(left + width / 2, risks, h, level)
    if bisection_gradient:
        span = high - low
        part = ((root - low) / span.where(span > 0, 1)).detach()
        between: Tensor = low + part * span
        return between
    return _newton(root, risks, h, level)


def _newton(q: Tensor, risks: Tensor, h: Tensor, level: Tensor) -> Tensor:
    """One Newton step; at the quantile its derivative equals the implicit function's."""
    z = (q - risks) / h
    density = (-0.5 * z.square()).exp().mean().clamp(min=FLAT) / (math.sqrt(2 * math.pi) * h)
    excess: Tensor = torch.special.ndtr(z).mean() - level
    return q - excess / density.detach()
