"""Automatic feature reweighting."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from oodbench.algorithms import Drawing, Outputs, register
from oodbench.hparams import choice, hparam, log_uniform

from .counted import Counted
from .retraining import Retrained


@register("AFR", paper="arXiv:2306.11074")
class AFR(Retrained, Counted):
    """ERM, then its classifier trained on held-out examples, with more weight on ERM's mistakes.

    sum_i w_i l_i + penalty_weight ||theta - theta_1||^2 with w_i proportional to exp(-gamma p_i) / n_y (eq.
    1 to 3): p_i is the probability of the example's class under ERM's classifier theta_1, from which the
    second stage starts, and n_y the size of its class. No attribute is needed. `held_out` is the share of
    every environment's training examples that the first stage never sees. Deviations: the weights sum to 1
    over a step's examples, in the paper over all examples (the same with full batches); class sizes count
    all training examples.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Retrained.Hparams):
        """gamma in the range of the paper's code, 1 to 20; its penalty on CelebA is 0.001."""

        gamma: float = hparam(4.0, log_uniform(1.0, 20.0), low=0.0)
        penalty_weight: float = hparam(0.0, choice(0.0, 1e-3, 1e-2, 1e-1), low=0.0)
        held_out: float = hparam(0.2, low=0.0, high=0.9)

    def drawing_at(self, step: int) -> Drawing:
        """The held-out examples in the second stage, the others in the first."""
        return Drawing(self.hparams.sampling, self.hparams.held_out, self.retrains(step))

    def start_stage(self, step: int) -> None:
        """Save ERM's classifier, theta_1, when the second stage begins."""
        if self._begins(step):
            for value, kept in self._heads():
                kept.copy_(value)

    def example_weights(self, out: Outputs) -> Tensor:
        """The weights w_i (E, B) of a step's examples, which sum to 1."""
        kept = self.kept_head.state_dict()
        with torch.no_grad(), self.precision(out.features):
            logits = functional_call(self.network.classifier, kept, (out.features.flatten(0, 1),))
        logits = torch.unflatten(logits.to(out.losses.dtype), 0, out.targets.shape)
        probability = (-out.task.losses(logits, out.targets)).exp()
        weights = (-self.hparams.gamma * probability).exp()
        weights = weights / self.counts[out.targets.long()]
        return weights / weights.sum()

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk; in the second stage the weighted loss and the penalty on theta - theta_1."""
        if not self.retrains(out.step):
            return out.risks.mean()
        now = self.network.classifier.parameters()
        moved = [
            (p - q).square().sum() for p, q in zip(now, self.kept_head.parameters(), strict=True)
        ]
        weighted = (self.example_weights(out) * out.losses).sum()
        return weighted + self.hparams.penalty_weight * torch.stack(moved).sum()
