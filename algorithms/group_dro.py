"""Distributionally robust optimization over environments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, Problem, register
from oodbench.hparams import hparam, log_uniform
from oodbench.networks.base import Network


@register("GroupDRO", paper="arXiv:1911.08731")
class GroupDRO(Algorithm):
    """The risks weighted by how large they were: environments with a large risk count for more.

    Algorithm 1 (online): q_e <- q_e exp(eta R_e), normalised to sum to 1; then sum_e q_e R_e is
    minimised with q held fixed. The groups here are the training environments, as in
    arXiv:2007.01434's code; the paper's own are (target, attribute) pairs. Environments that a step
    does not draw keep their share.
    """

    weights: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434, D.2."""

        eta: float = hparam(1e-2, log_uniform(1e-3, 1e-1), low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        count = len(problem.environments)
        self.register_buffer("weights", torch.full((count,), 1 / count))

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """With eta = 0 the weights stay equal, and the method is ERM."""
        return {"eta": 0.0}

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """q after this step's risks."""
        factors = (self.hparams.eta * out.risks.detach()).exp()
        weights = self.weights * out.over_environments(factors, torch.ones_like(self.weights))
        return {"weights": weights / weights.sum()}

    def objective(self, out: Outputs) -> Tensor:
        """sum_e q_e R_e, over the environments of the step."""
        weights = out.of_step(out.buffers["weights"])
        return (weights / weights.sum() * out.risks).sum()
