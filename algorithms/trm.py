"""Transfer risk minimisation."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, first_step, register
from oodbench.hparams import hparam, log_uniform
from oodbench.networks.base import Network

from .group_dro import exponentials

FITS, RATE = 30, 0.1
"""Gradient steps of each environment's head per update, and their size."""
TERMS, LIMIT = 10, 10.0
"""Terms of the inverse Hessian's Neumann series, and the largest entry above which it stops."""


@register("TRM", paper="arXiv:2110.09940")
class TRM(Algorithm):
    """The mean risk, and the risk of each environment's optimal head on the other environments.

    Each environment has a linear head h_Q, which 30 gradient steps per update fit to it. From step
    `anneal_steps` on, mean_Q [sum_P a_QP R_P(h_Q) - hessian_weight <H_Q^-1 v_Q, grad R_Q(h_Q)>] is added to
    the mean risk, with v_Q the gradient in h_Q of the first sum and H_Q^-1 by a Neumann series of ten
    terms, both constants of the gradient: the second term is how the heads move with the features. a_QP,
    1 / (E - 1) at first, is multiplied by exp(eta a_QP R_P(h_Q)) after every update and normalised over P.
    Hessian and slopes are those of the weights without the biases, and heads and shares first move at
    `anneal_steps`, as in arXiv:2007.01434's code. That code overwrites tensors that are still needed: its
    series counts the second term twice and omits the first, and its gradients use the next a_QP.
    """

    changes = "penalty"
    needs = Needs(environments=2, feature_vector=True)
    heads: Tensor
    biases: Tensor
    shares: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults and ranges: arXiv:2007.01434's code, in shares of its 5,001 steps."""

        hessian_weight: float = hparam(1e-4, log_uniform(1e-5, 1e0), low=0.0)
        anneal_steps: int | float = hparam(0.04, log_uniform(1 / 5001, 0.999999), low=0)
        eta: float = hparam(1e-2, log_uniform(1e-3, 1e-1), low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        count, outputs = len(problem.environments), problem.task.num_outputs
        layers = [nn.Linear(network.num_features, outputs) for _ in range(count)]
        self.register_buffer("heads", torch.stack([layer.weight.detach() for layer in layers]))
        self.register_buffer("biases", torch.stack([layer.bias.detach() for layer in layers]))
        self.register_buffer("shares", torch.ones(count, count) - torch.eye(count))

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require heads that are linear in a feature vector, and cross-entropies."""
        if problem.task.kind == "regression":
            return "steps of its heads, which suit cross-entropies, diverge on squared errors"
        return super().skip(problem)

    def _started(self, out: Outputs) -> Tensor:
        """1 from `anneal_steps` on, else 0."""
        start = first_step(self.hparams.anneal_steps, self.problem.steps)
        return out.losses.new_zeros(()) + (out.step >= start)

    def _slopes(self, out: Outputs, features: Tensor, heads: Tensor, biases: Tensor) -> Tensor:
        """The gradients in the logits of the risk of each environment's own head, (E, B, C)."""
        logits = features @ heads.mT + biases.unsqueeze(1)
        return out.task.logit_gradients(logits, out.targets) / logits.shape[1]

    def _logits(self, features: Tensor, heads: Tensor, biases: Tensor) -> Tensor:
        """The logits of every head Q for every environment P, (Q, P, B, C), by one product."""
        logits = torch.unflatten(features @ heads.flatten(0, 1).mT, 2, heads.shape[:2])
        return logits.permute(2, 0, 1, 3) + biases[:, None, None]

    def _shared(self, out: Outputs, logits: Tensor) -> Tensor:
        """a_QP R_P(h_Q), (Q, P)."""
        targets = out.targets.expand(len(logits), *out.targets.shape)
        return self._normalised(out) * out.task.losses(logits, targets).mean(2)

    def _normalised(self, out: Outputs) -> Tensor:
        shares = out.of_step(out.of_step(self.shares).mT).mT
        return shares / shares.sum(1, keepdim=True)

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """The heads after their steps, and the shares after this update's risks."""
        heads, biases = (out.of_step(each) for each in (self.heads, self.biases))
        features, rate = out.features.detach(), RATE * self._started(out)
        for _ in range(FITS):
            slopes = rate * self._slopes(out, features, heads, biases)
            heads, biases = heads - slopes.mT @ features, biases - slopes.sum(1)
        exponents = self.hparams.eta * self._shared(out, self._logits(features, heads, biases))
        before = out.of_step(out.of_step(self.shares).mT).mT
        shares = torch.lerp(
            before, self._normalised(out) * exponentials(exponents), self._started(out)
        )
        rows = out.over_environments(shares.mT, out.of_step(self.shares).mT).mT
        return {
            "heads": out.over_environments(heads, self.heads),
            "biases": out.over_environments(biases, self.biases),
            "shares": out.over_environments(rows, self.shares),
        }

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk and, from `anneal_steps` on, the transfer risk."""
        heads, biases = (out.of_step(out.buffers[n]).detach() for n in ("heads", "biases"))
        logits = self._logits(out.features, heads, biases)
        features, count = out.features.detach(), out.losses.shape[1]
        targets = out.targets.expand(len(logits), *out.targets.shape)
        slopes = out.task.logit_gradients(logits.detach(), targets) / count
        slopes = slopes * self._normalised(out)[:, :, None, None]
        v = torch.einsum("qpbc,pbf->qcf", slopes, features)
        # the Hessian in the logits, which makes products with the heads' Hessian cheap
        of_own = features @ heads.mT + biases.unsqueeze(1)
        hessian: Any = vjp(lambda z: out.task.logit_gradients(z, out.targets) / count, of_own)[1]
        inverse, going = v, v.new_ones(len(v), 1, 1) > 0
        for _ in range(TERMS):
            v = v - hessian(features @ v.mT)[0].mT @ features
            inverse = inverse + torch.where(going, v, 0.0)
            going = going & (inverse.abs().amax((1, 2), keepdim=True) <= LIMIT)
        own = self._slopes(out, out.features, heads, biases) * (out.features @ inverse.mT)
        moved = self.hparams.hessian_weight * own.sum()
        transfer = (self._shared(out, logits).sum() - moved) / len(heads)
        out.metrics["transfer_risk"] = transfer.detach()
        return out.risks.mean() + self._started(out) * transfer
