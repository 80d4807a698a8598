"""Environment inference for invariant learning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, Problem, first_step, register
from oodbench.hparams import hparam, log_uniform, uniform
from oodbench.optimizers import Rates

from .jtt import JTT


@register("EIIL", paper="arXiv:2010.07249")
class EIIL(JTT):
    """ERM, then IRM from new weights on two environments that are inferred from ERM's outputs.

    The inference looks for the shares q of a first environment that maximise the sum of the squared
    gradients (mean_i q_i g_i)^2 + (mean_i (1 - q_i) g_i)^2 of ERM's risks in a scale of its outputs (eq. 3,
    in the form of the authors' code). The sum is convex in q and largest at q_i = 1 if g_i > 0, else 0
    (or the reverse): this solution replaces the code's 10,000 steps of Adam. The second stage is IRM
    (arXiv:1907.02893) on both environments: mean_k [R_k + w (d/dscale R_k)^2], where w is 1 in the first
    `anneal_steps` of its steps, then `penalty_weight`; if w exceeds 1, loss and weight decay are divided by
    w. Deviations: g_i is that of the step that last trained on the example, as in `JTT`, which has the same
    stages.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The first stage as JTT's; penalty and annealing as IRM's on small images."""

        first_stage: int | float = hparam(0.5, uniform(0.02, 0.8), low=0)
        penalty_weight: float = hparam(1e4, log_uniform(1e2, 1e6), low=0.0)
        anneal_steps: float = hparam(0.2, uniform(0.1, 0.5), low=0.0, high=1.0)
        """A share of the second stage's steps."""

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """A first stage that takes all steps."""
        return {"first_stage": problem.steps}

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """Mask (E, N) of the examples with g > 0 when the first stage last trained on them."""
        assert out.batch.index is not None
        first = out.task.scale_gradients(out.logits.detach(), out.targets) > 0
        updated = out.of_step(self.wrong).scatter(1, out.batch.index, first.to(self.wrong.dtype))
        updated = out.over_environments(updated, self.wrong)
        return {"wrong": torch.lerp(updated, self.wrong, self._second(out))}

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk; in the second stage IRM's objective on the inferred environments."""
        assert out.batch.index is not None
        first = out.of_step(out.buffers["wrong"]).gather(1, out.batch.index)
        members = torch.stack([first, 1 - first])
        sizes = members.sum((1, 2)).clamp(min=1)
        risks = (members * out.losses).sum((1, 2)) / sizes
        gradients = out.task.scale_gradients(out.logits, out.targets)
        penalty = ((members * gradients).sum((1, 2)) / sizes).square().mean()
        out.metrics["penalty"] = penalty.detach()
        weight = self._weight(out)
        invariant = (risks.mean() + weight * penalty) / weight.clamp(min=1)
        return torch.lerp(out.risks.mean(), invariant, self._second(out))

    def schedule(self, step: int, rates: Rates) -> Rates:
        """Divide weight decay like the loss, and restart the optimizer when the second stage begins."""
        rates = super().schedule(step, rates)
        divisor = max(1.0, self.hparams.penalty_weight) if self._is_annealed(step) else 1.0
        return rates._replace(weight_decay=rates.weight_decay / divisor)

    def _is_annealed(self, step: int) -> bool:
        start = first_step(self.hparams.first_stage, self.problem.steps)
        return step >= start + self.hparams.anneal_steps * (self.problem.steps - start)

    def _weight(self, out: Outputs) -> Tensor:
        excess = self._is_annealed(out.step) * (self.hparams.penalty_weight - 1)
        return out.losses.new_ones(()) + excess
