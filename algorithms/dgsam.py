"""Sharpness-aware minimisation, one environment after the other."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, register
from oodbench.hparams import choice, hparam

from .perturbed import excursion, gradients, trained


@register("DGSAM", paper="arXiv:2503.23430")
class DGSAM(Algorithm):
    """The mean of the gradients along a climb on the environments' risks in turn.

    In an order drawn at each step, theta_0 = theta, g_j the gradient of the j-th environment's risk at
    theta_{j-1}, and theta_j = theta_{j-1} + rho g_j / ||g_j||; the first environment, whose gradient was
    taken at theta, is used once more at the end. The update uses the mean of the E + 1 gradients, for E + 1
    passes of one environment each (SAM: 2 E). The paper sums the risks, which makes its gradient E times as
    large. Statistics of batch normalisation are those of the climb; dropout draws again in each pass.
    """

    changes = "step"
    noise_on_host = True

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """As in `SAM`."""

        rho: float = hparam(0.05, choice(0.01, 0.02, 0.05, 0.1), low=0.0)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The order of the climb, (E,)."""
        return {"order": torch.randperm(len(batch.x), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Take a pass of every environment and one more; `loss` is the mean risk along the climb."""
        parameters: list[Tensor] = [*trained(self.network)]
        order = batch.noise["order"].tolist()
        total, risks = [torch.zeros_like(p) for p in parameters], []
        with excursion(parameters):
            for e in [*order, order[0]]:
                risk = self.outputs(batch.of([e]), step).risks.mean()
                g = gradients(risk, parameters)
                norm = torch.stack(torch._foreach_norm(g)).norm()
                scale = self.hparams.rho / norm.clamp(min=torch.finfo(norm.dtype).tiny)
                torch._foreach_add_(total, g)
                with torch.no_grad():
                    torch._foreach_add_(parameters, list(torch._foreach_mul(g, scale)))
                risks.append(risk.detach())
        self.descend([gradient / len(risks) for gradient in total], step)
        return {"loss": torch.stack(risks[:-1]).mean()}
