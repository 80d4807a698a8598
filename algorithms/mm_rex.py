"""Minimax risk extrapolation, and its special case risk interpolation."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.errors import UserError
from oodbench.hparams import choice, hparam
from oodbench.networks.base import Network

from .penalized import Penalized, summed_risks_decay


def check_least_weight(name: str, least: float, environments: int) -> None:
    """Raise UserError if weights of at least `least` for each environment of a step cannot sum to 1."""
    if least > 1 / environments:
        raise UserError(
            f"{name}: 'lambda_min' must be at most 1/{environments} with that many environments a step, "
            f"not {least}"
        )


@register("MMREx", paper="arXiv:2003.00688")
class MMREx(Penalized):
    """The worst affine combination of the training risks, with weights of at least `lambda_min`.

    MM-REx (eq. 7): max over sum_e l_e = 1, l_e >= lambda_min of sum_e l_e R_e, which is (1 - E lambda_min)
    max_e R_e + lambda_min sum_e R_e for E environments, i.e. the mean risk plus
    (1 - E lambda_min) * (max_e R_e - mean_e R_e). So the penalty's weight is 1 - E lambda_min, and 1 (risk
    interpolation) before `anneal_steps`. lambda_min = 1/E is ERM, 0 the worst environment's risk; -4999.5
    with two environments is the weight 1e4 of the paper's Colored MNIST. E is the number of environments in
    a step (see `environments_per_step`).
    """

    needs = Needs(environments=2)
    changes = "risk"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """`lambda_min`, the smallest weight of an environment, replaces a penalty weight.

        Weight decay on small images follows the paper's code, see `VREx`.
        """

        lambda_min: float = hparam(
            -1.0,
            choice(-0.1, -0.3, -1.0, -3.0, -10.0, -100.0),
            high=1.0,
            by_family={"small_images": (-4999.5, choice(-1.0, -10.0, -100.0, -1000.0, -4999.5))},
        )
        weight_decay: float = summed_risks_decay()

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        check_least_weight("MMREx", hparams.lambda_min, self.count(0))

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object] | None:
        """lambda_min = 1 / E, which leaves equal weights: ERM."""
        return {"lambda_min": 1 / len(problem.environments), "anneal_steps": 0}

    def penalty(self, out: Outputs) -> Tensor:
        """The largest risk minus the mean risk."""
        return out.risks.max() - out.risks.mean()

    def count(self, step: int) -> int:
        """The number E of environments of a step."""
        return len(self.environments_at(step))

    def final_weight(self, step: int) -> float:
        """The weight of the penalty, 1 - E lambda_min."""
        return 1 - self.count(step) * self.hparams.lambda_min


@register("RI", paper="arXiv:2003.00688")
class RI(Algorithm):
    """Risk interpolation: the worst training environment's risk, as CVaR with a share of up to 1/E.

    MM-REx with lambda_min = 0; with `environments_per_step` the worst environment of the step. Also known
    as worst-case or hard group DRO; it is expected to fail where ERM fails.
    """

    needs = Needs(environments=2)

    def objective(self, out: Outputs) -> Tensor:
        """The largest risk of the step's environments, max_e R_e."""
        return out.risks.max()
