"""Sharpness-aware minimisation: SAM, SAGM and DISAM."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, Outputs, Problem, register
from oodbench.hparams import choice, hparam, log_uniform

from .perturbed import excursion, gradients, trained


@register("SAM", paper="arXiv:2010.01412")
class SAM(Algorithm):
    """The mean risk at the worst nearby point: a step with the gradient at theta + rho g / ||g||.

    g is the gradient at theta, over all trained parameters (eq. 2 with p = 2; eq. 3 without its second
    order, as the paper's algorithm 1), without weight decay. Both passes see the whole batch; batch
    normalisation keeps the statistics of the first, and dropout draws again in the second.
    """

    changes = "step"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The paper's default, and the smaller values of its search."""

        rho: float = hparam(0.05, choice(0.01, 0.02, 0.05, 0.1), low=0.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """rho = 0, with which the second gradient equals the first."""
        return {"rho": 0.0}

    def climbed(self, out: Outputs) -> Tensor:
        """The loss whose worst nearby point is sought; its gradient at theta is g."""
        return out.risks.mean()

    def shift(self, norm: Tensor) -> Tensor:
        """The step from theta to the second gradient's point, as a multiple of g, whose norm is `norm`."""
        return self.hparams.rho / norm.clamp(min=torch.finfo(norm.dtype).tiny)

    def step_gradients(self, first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        """The gradients for the optimizer, from those at theta and at the nearby point."""
        return second

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Two passes and one step; `loss` is the mean risk at theta."""
        parameters: list[Tensor] = [*trained(self.network)]
        out = self.outputs(batch, step)
        first = gradients(self.climbed(out), parameters)
        shift = self.shift(torch.stack(torch._foreach_norm(first)).norm())
        with excursion([*parameters, *self.network.buffers()]):
            with torch.no_grad():
                torch._foreach_add_(parameters, list(torch._foreach_mul(first, shift)))
            second = gradients(self.outputs(batch, step).risks.mean(), parameters)
        self.descend(self.step_gradients(first, second), step)
        return {"loss": out.risks.mean().detach()}


@register("SAGM", paper="arXiv:2303.10353")
class SAGM(SAM):
    """The mean risk at theta and, aligned with it, the mean risk at the worst nearby point.

    The step is with (g + g') / 2, g' the gradient at theta + (rho / ||g|| - alpha) g: that of L(theta) +
    L_p(theta - alpha g), where L_p is SAM's perturbed loss, without second order. The paper adds the two
    losses; like its code we take the mean, so that learning rates are comparable. Batch normalisation and
    dropout are as in SAM.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(SAM.Hparams):
        """Alpha: the paper's code, 1e-3 for PACS and VLCS, 5e-4 for OfficeHome."""

        alpha: float = hparam(1e-3, choice(5e-4, 1e-3), low=0.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Take both gradients at the same point."""
        return {"rho": 0.0, "alpha": 0.0}

    def shift(self, norm: Tensor) -> Tensor:
        """rho / ||g|| - alpha."""
        return super().shift(norm) - self.hparams.alpha

    def step_gradients(self, first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        """The mean of the two."""
        return list(torch._foreach_lerp(first, second, 0.5))


@register("DISAM", paper="arXiv:2405.18861")
class DISAM(SAM):
    """The mean risk at a nearby point, to which environments with large risks contribute less.

    As SAM, with g the gradient of mean_e R_e - variance_weight * mean_e (R_e - mean R)^2 at theta; the step
    is with the gradient of the mean risk at theta + rho g / ||g||. Batch normalisation keeps the statistics
    of the first pass; in the authors' code, of both.
    """

    needs = Needs(environments=2)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(SAM.Hparams):
        """The authors' lambda."""

        variance_weight: float = hparam(0.1, log_uniform(1e-2, 1e0), low=0.0)

    def climbed(self, out: Outputs) -> Tensor:
        """The mean of the risks minus their weighted variance."""
        return out.risks.mean() - self.hparams.variance_weight * out.risks.var(correction=0)
