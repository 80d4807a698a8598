"""The temporal AND-mask: agreement over the last steps, one environment a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oodbench.algorithms import Algorithm, Problem, register
from oodbench.hparams import hparam, log_uniform, uniform
from oodbench.optimizers import DECAYS, TemporalANDMask
from oodbench.seeds import derive


@register("TemporalANDMask", paper="arXiv:2009.00329, algorithm 1")
class TemporalANDMaskERM(Algorithm):
    """One environment's risk a step, with the optimizer that asks signs to agree across steps.

    Each training environment comes once in every round of E steps, in an order drawn anew (section
    4.3). The optimizer, `oodbench.optimizers.TemporalANDMask`, takes any objective: a method of
    your own returns it from `configure`. `optimizer`, `momentum` and `environments_per_step` have
    no effect here.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults: the paper's best run (table 3); ranges: around its five best."""

        lr: float = hparam(0.0078, log_uniform(1e-3, 1e-1), low=0.0)
        weight_decay: float = hparam(0.057, log_uniform(1e-3, 1e-1), low=0.0)
        beta1: float = hparam(0.21, uniform(0.0, 0.9), low=0.0, high=0.9999)
        beta2: float = hparam(0.999, low=0.0, high=0.9999)
        beta3: float = hparam(0.79, uniform(0.5, 0.95), low=0.0, high=0.9999)
        tau: float = hparam(0.36, uniform(0.0, 0.8), low=0.0, high=1.0)
        decay: str = hparam("after", options=DECAYS)
        bias_correction: bool = hparam(False)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Agreement needs two environments."""
        if len(problem.environments) < 2:
            return "the agreement of gradients needs at least two training environments"
        return super().skip(problem)

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizer of Algorithm 1."""
        h = self.hparams
        optimizer = TemporalANDMask(
            [p for p in self.parameters() if p.requires_grad],
            h.lr,
            (h.beta1, h.beta2, h.beta3),
            h.tau,
            weight_decay=h.weight_decay,
            decay=h.decay,
            bias_correction=h.bias_correction,
        )
        return {"main": optimizer}

    def environments_at(self, step: int) -> Sequence[int]:
        """The one training environment whose turn it is."""
        names: Any = self.problem.environments
        turn, place = divmod(step, len(names))
        order = sorted(range(len(names)), key=lambda e: derive("turn", turn, names[e]))
        return [order[place]]
