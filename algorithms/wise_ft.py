"""Weights interpolated between a pretrained and a fine-tuned network."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, register
from oodbench.hparams import hparam, uniform
from oodbench.networks.base import Network


@register("WiSEFT", paper="arXiv:2109.01903")
class WiSEFT(Algorithm):
    """ERM, whose predictions are those of (1 - alpha) theta_0 + alpha theta.

    theta are the fine-tuned weights, theta_0 the weights before fine-tuning. The paper starts from a
    network with a zero-shot head made of text. For a model without one, an author suggests training a new
    head alone for some steps first, and averaging only the backbone, under the trained head
    (mlfoundations/wise-ft, issue 8). Here the head is first trained alone in the same way (`head_only`),
    but averaged like the backbone, as a zero-shot head is. Statistics of batch normalisation are averaged
    with the same shares, as all entries of the state in their code.
    """

    changes = "estimator"
    needs = Needs(pretrained=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The default alpha is what the authors recommend if nothing is known of the shift; in their
        experiments it is close to the best alpha of each. Their code's example evaluates 0, 0.1, ..., 1 on
        one fine-tuned model; here each alpha is a separate training.
        """

        alpha: float = hparam(0.5, uniform(0.0, 1.0), low=0.0, high=1.0)
        """The share of the fine-tuned weights."""
        head_only: int | float = hparam(0.2, low=0)
        """Updates at the start that train the classifier alone, below 1 a share of the run's steps."""

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.start = copy.deepcopy(network).requires_grad_(False)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require a start whose head is trained, or made of texts."""
        if not problem.hparams["head_only"] and not problem.zero_shot:
            return "it starts from a trained head, and `head_only` is 0"
        return super().skip(problem)

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The usual update; until fine-tuning begins theta_0 follows theta, so predictions are theta's."""
        metrics = super().update(batch, step)
        if self.trains_head_only(step):
            for kept, value in zip(self._start(), self._now(), strict=True):
                kept.copy_(value)
        return metrics

    def _start(self) -> list[Tensor]:
        return [value.detach() for value in self.start.state_dict().values()]

    def _now(self) -> list[Tensor]:
        return [value.detach() for value in self.network.state_dict().values()]

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) with the interpolated weights."""
        alpha = self.hparams.alpha
        pairs = zip(self.start.state_dict().items(), self._now(), strict=True)
        weights = {
            name: torch.lerp(start, now, alpha) if now.is_floating_point() else now
            for (name, start), now in pairs
        }
        logits: Tensor = torch.func.functional_call(self.network, weights, (x,))
        return logits
