"""Distributionally robust optimization over environments or groups."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import hparam, log_uniform
from oodbench.networks.base import Network

LARGEST = 80.0
"""The largest exponent whose exponential, and sums of a few, fit into single precision."""


def exponentials(exponents: Tensor) -> Tensor:
    """exp(exponents) up to a common factor along the last dimension, which keeps them finite.

    The factor is 1, and the values exact, unless an exponent exceeds LARGEST.
    """
    excess: Tensor = exponents.amax(-1, keepdim=True) - LARGEST
    return (exponents - excess.clamp(min=0)).exp()


@register("GroupDRO", paper="arXiv:1911.08731")
class GroupDRO(Algorithm):
    """The weighted mean of the risks, in which an environment or group with large risks counts for more.

    Algorithm 1 (online): q_e <- q_e exp(eta R_e), normalised to sum to 1; then sum_e q_e R_e is minimised
    with q held fixed. `over: environments` takes the training environments as the groups e, as in
    arXiv:2007.01434's code; environments left out of a step have the factor 1, and the weights of the
    others are scaled to sum to 1 in the loss, unlike in WILDS' code. `over: groups` takes the paper's
    groups, pairs of target and attribute across environments: R_e is the mean over the group's examples in
    the batch, 0 if there are none, as in the paper's code. There eta is 0.01, and the groups are drawn
    equally often (`sampling: rwg`); its adjustment C / sqrt(n_e) of the risks is left out.
    """

    changes = "group"
    needs = Needs(attributes={"over": "groups"})
    weights: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434, D.2."""

        eta: float = hparam(1e-2, log_uniform(1e-3, 1e-1), low=0.0)
        over: str = hparam(
            "environments", options=("environments", "groups"), neutral="environments"
        )

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        count = len(problem.environments)
        if hparams.over == "groups":
            count = problem.task.classes * problem.attributes
        self.register_buffer("weights", torch.full((count,), 1 / count))

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Keep the weights of the environments equal by eta = 0, which is ERM."""
        return {"eta": 0.0, "over": "environments"}

    def group_risks(self, out: Outputs) -> Tensor:
        """The mean loss of each group's examples in the batch, (G,); 0 for absent groups."""
        assert out.batch.attributes is not None
        group = out.task.groups(out.targets, out.batch.attributes, self.problem.attributes)
        every = torch.arange(len(self.weights), device=group.device)
        member = (group.flatten() == every.unsqueeze(1)).to(out.losses.dtype)
        return member @ out.losses.flatten() / member.sum(1).clamp(min=1)

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """q after this step's risks."""
        if self.hparams.over == "groups":
            exponents = self.hparams.eta * self.group_risks(out).detach()
        else:
            exponents = self.hparams.eta * out.risks.detach()
            exponents = out.over_environments(exponents, torch.zeros_like(self.weights))
        weights = self.weights * exponentials(exponents)
        return {"weights": weights / weights.sum()}

    def objective(self, out: Outputs) -> Tensor:
        """sum_e q_e R_e, over the environments of the step or over the groups."""
        if self.hparams.over == "groups":
            return (out.buffers["weights"] * self.group_risks(out)).sum()
        weights = out.of_step(out.buffers["weights"])
        return (weights / weights.sum() * out.risks).sum()
