"""Transferability between the training environments."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, register
from oodbench.hparams import choice, hparam, log_uniform, uniform
from oodbench.networks.base import Network

from .perturbed import gradients


@register("Transfer", paper="arXiv:2106.03632")
class Transfer(Algorithm):
    """The mean risk, and the largest gap between two environments' risks for a nearby classifier.

    With h' a second classifier at most `radius` from the network's classifier h (Euclidean), algorithm 1
    does a step of phi and h on mean_e R_e(h), a step of phi on weight * (max_e R_e(h') - min_e R_e(h')),
    and `ascents` steps of h', starting at h, of size ascent_lr * weight up the same gap, each projected
    onto the ball. The adversary of an update thus comes from the previous batch, and phi takes two steps of
    its optimizer. This is arXiv:2007.01434's code at its defaults; all its random draws set `gda`, which
    trains neither featurizer nor classifier and is left out here.
    """

    changes = "adversarial"
    needs = Needs(environments=2, outputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults and ranges: arXiv:2007.01434's code."""

        penalty_weight: float = hparam(1.0, log_uniform(1e-2, 1e1), low=0.0)
        radius: float = hparam(2.0, uniform(0.1, 3.0), low=0.0)
        ascents: int = hparam(10, choice(1, 2, 5), low=0)
        ascent_lr: float = hparam(1e-3, log_uniform(10**-4.5, 10**-2.5), low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.adversary: nn.Module = copy.deepcopy(network.classifier).requires_grad_()

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out the gap, which is ERM."""
        return {"penalty_weight": 0.0}

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """The network's optimizer; the adversary takes plain steps."""
        return {"main": self.optimizer_of(self.network.parameters())}

    def _gap(self, features: Tensor, batch: Batch) -> Tensor:
        """The weighted gap under the adversary, of features (E * B, F)."""
        with self.precision(batch.x):
            logits = self.adversary(features).to(features.dtype)
        logits = logits.unflatten(0, batch.x.shape[:2])
        risks = self.problem.task.losses(logits, batch.y).mean(1)
        return self.hparams.penalty_weight * (risks.max() - risks.min())

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Two steps of the network, then `ascents` of the adversary; `loss` is the mean risk before."""
        loss = self.outputs(batch, step).risks.mean()
        self.descend(loss, step)
        x = batch.x.flatten(0, 1)
        if self.hparams.penalty_weight:
            # the classifier gets no gradient of the gap, so the optimizer skips it
            self.descend(self._gap(self.featurized(x), batch), step)
        with torch.no_grad():
            features = self.featurized(x)
        gap = self._climb(features, batch)
        return {"loss": loss.detach(), "gap": gap.detach()}

    def _climb(self, features: Tensor, batch: Batch) -> Tensor:
        """Restart the adversary at the classifier and climb; the weighted gap before the last step."""
        centre = [p.detach() for p in self.network.classifier.parameters()]
        adversary: list[Tensor] = [*self.adversary.parameters()]
        self.adversary.load_state_dict(self.network.classifier.state_dict())
        gap = features.new_zeros(())
        for _ in range(self.hparams.ascents):
            gap = self._gap(features, batch)
            slopes = gradients(gap, adversary)
            with torch.no_grad():
                torch._foreach_add_(adversary, slopes, alpha=self.hparams.ascent_lr)
                away = torch._foreach_sub(adversary, centre)
                distance = torch.stack(torch._foreach_norm(away)).norm()
                share = (self.hparams.radius / distance.clamp(min=1e-30)).clamp(max=1.0)
                torch._foreach_copy_(
                    adversary, torch._foreach_add(centre, torch._foreach_mul(away, share))
                )
        return gap
