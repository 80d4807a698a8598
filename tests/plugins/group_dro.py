"""A stranger's GroupDRO: weights that are remembered from step to step."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, Problem, register
from oodbench.hparams import hparam, log_uniform
from oodbench.networks.base import Network


@register("StrangersGroupDRO", paper="arXiv:1911.08731")
class StrangersGroupDRO(Algorithm):
    """Environments with large risks weigh more, by weights that grow with each step's risks."""

    q: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The step size of the weights."""

        eta: float = hparam(0.01, log_uniform(1e-3, 1e-1), low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.register_buffer("q", torch.ones(len(problem.environments)))

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """The weights after this step's risks."""
        q = self.q * (self.hparams.eta * out.risks.detach()).exp()
        return {"q": q / q.sum()}

    def objective(self, out: Outputs) -> Tensor:
        """The weighted sum of the risks."""
        return (out.buffers["q"] * out.risks).sum()
