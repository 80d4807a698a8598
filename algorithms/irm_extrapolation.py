"""Extrapolation of IRM's penalties: their variance, or their worst affine combination."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Needs, Outputs, Problem, register
from oodbench.hparams import altered, choice, hparam
from oodbench.networks.base import Network

from .irm import IRM
from .mm_rex import check_least_weight
from .penalized import Penalized

TENTHS = [n / 10 for n in range(1, 11)]


class Extrapolated(Penalized):
    """Mean risk plus a weight times a function of IRMv1's penalties of the environments.

    The authors add weight_decay ||theta||^2 to the loss: ours is twice theirs.
    """

    needs = Needs(environments=2, outputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """The weights of `IRM`."""

        penalty_weight: float = altered(IRM.Hparams, "penalty_weight", {})

    def penalties(self, out: Outputs) -> Tensor:
        """P_e = (d/dw R_e(w * logits) at w = 1)^2 of each environment, (E,)."""
        return out.task.scale_gradients(out.logits, out.targets).mean(1).square()


@register("VIRMv1", paper="arXiv:2505.16126")
class VIRMv1(Extrapolated):
    """Mean risk plus a mixture of the mean and the variance of IRM's penalties over environments.

    v-IRMv1: mean_e R_e + weight * [(1 - share) mean_e P_e + share * var_e P_e] with IRMv1's P_e = (d/dw
    R_e(w * logits) at w = 1)^2 and, as in the authors' code, the variance that divides by E - 1. A share of
    0 is `IRM`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Extrapolated.Hparams):
        """The authors' grid for the share, and its middle."""

        variance_share: float = hparam(0.5, choice(*TENTHS[:9]), low=0.0, high=1.0)

    def penalty(self, out: Outputs) -> Tensor:
        """(1 - share) * mean + share * variance of the penalties."""
        penalties, share = self.penalties(out), self.hparams.variance_share
        return (1 - share) * penalties.mean() + share * penalties.var()


@register("MMIRMv1", paper="arXiv:2505.16126")
class MMIRMv1(Extrapolated):
    """Mean risk plus the worst affine combination of IRM's penalties of the environments.

    mm-IRMv1: mean_e R_e + weight * max over sum_e l_e = 1, l_e >= lambda_min of sum_e l_e P_e, which is (1
    - E lambda_min) max_e P_e + lambda_min sum_e P_e for the E environments of a step and IRMv1's P_e (see
    `VIRMv1`). lambda_min = 1/E is `IRM`, 0 the largest penalty.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Extrapolated.Hparams):
        """The authors' grid for the smallest weight, and its middle."""

        lambda_min: float = hparam(-0.5, choice(*(-share for share in TENTHS)), high=1.0)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        check_least_weight("MMIRMv1", hparams.lambda_min, len(self.environments_at(0)))

    def penalty(self, out: Outputs) -> Tensor:
        """The worst affine combination of the penalties."""
        penalties, least = self.penalties(out), self.hparams.lambda_min
        return (1 - len(penalties) * least) * penalties.max() + least * penalties.sum()
