"""Inter-environmental gradient alignment."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.gradients.twice import twice_differentiable
from oodbench.hparams import hparam, log_uniform
from oodbench.networks.base import Network


@register("IGA", paper="arXiv:2008.01883")
class IGA(Algorithm):
    """Mean risk plus the sum over environments of the squared distance of a gradient to their mean.

    R + penalty_weight * sum_e |g_e - mean g|^2 with g_e the gradient of R_e with respect to all of the
    network's parameters (the trace of its variance over environments, times their number). Constants
    are those of arXiv:2007.01434's code. The gradients come from a forward and a backward pass of
    their own, in which batch normalisation takes each environment by its own statistics; the update
    differentiates through both.
    """

    needs = Needs(environments=2)
    changes = "penalty"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434's code."""

        penalty_weight: float = hparam(1000.0, log_uniform(1e1, 1e5), low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        self._trained = {n for n, p in network.named_parameters() if p.requires_grad}

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """There must be gradients to align."""
        if problem.task.kind == "boxes":
            return "a detector's losses are no function of its outputs"
        return super().skip(problem)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Without a penalty the method is ERM."""
        return {"penalty_weight": 0.0}

    def objective(self, out: Outputs) -> Tensor:
        """The objective R + penalty_weight * sum_e |g_e - mean g|^2."""
        half = out.risks.new_zeros(())
        for g in self.gradients(out).values():
            away = (g - g.mean(0)).detach()  # adds up to 0, so that <away, g> is |away|^2
            half = half + torch.dot(away.flatten(), g.flatten())
        penalty = 2 * half - half.detach()
        out.metrics["penalty"] = penalty.detach()
        total: Tensor = out.risks.mean() + self.hparams.penalty_weight * penalty
        return total

    def gradients(self, out: Outputs) -> dict[str, Tensor]:
        """The gradients g_e by trained parameter, (E, *shape) each, themselves differentiable."""
        assert out.batch is not None
        x, y = out.batch.x, out.batch.y
        trained = {n: p for n, p in self.network.named_parameters() if n in self._trained}
        buffers = {n: b.expand(len(x), *b.shape).clone() for n, b in self.network.named_buffers()}

        def risk(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
            logits = functional_call(self.network, {**parameters, **buffers}, (x,))
            return out.task.losses(logits, y).mean()

        each = vmap(grad(risk), in_dims=(None, 0, 0, 0), randomness="different")
        with twice_differentiable():
            found: dict[str, Tensor] = each(trained, buffers, x, y)
        return found
