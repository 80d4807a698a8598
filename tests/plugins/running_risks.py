"""A stranger's running average, in a buffer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, Problem, register
from oodbench.hparams import hparam, uniform
from oodbench.networks.base import Network


@register("StrangersRunningRisks", paper="none")
class StrangersRunningRisks(Algorithm):
    """The mean risk plus the squares of the risks' distances from their running averages."""

    average: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """How slowly the averages move."""

        ema: float = hparam(0.9, uniform(0.5, 0.99), low=0.0, high=1.0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.register_buffer("average", torch.zeros(len(problem.environments)))

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """The averages with this step's risks."""
        ema = self.hparams.ema
        return {"average": ema * self.average + (1 - ema) * out.risks.detach()}

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk and the squares."""
        distance = out.risks - out.buffers["average"]
        return out.risks.mean() + distance.square().mean()
