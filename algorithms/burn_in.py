"""Methods that start as ERM and later change objective and learning rate: EQRM, RDM."""

from dataclasses import dataclass
from typing import Any

from oodbench.algorithms import Algorithm, Problem, first_step
from oodbench.hparams import hparam
from oodbench.optimizers import Rates


class BurnIn(Algorithm):
    """ERM until `burn_in` (below 1: a share of the steps), then the subclass's objective.

    At that step the optimizer restarts with the learning rate `lr_after` instead of `lr`, on the same
    schedule. Subclasses set the defaults of `burn_in` and `lr_after`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """When the burn-in ends, and the learning rate after it."""

        burn_in: int | float = hparam(0.5, low=0)
        lr_after: float = hparam(1e-5, low=0.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """A burn-in that takes all steps."""
        return {"burn_in": problem.steps}

    def burnt_in(self, step: int) -> bool:
        """Whether `step` is past the burn-in."""
        return step >= first_step(self.hparams.burn_in, self.problem.steps)

    def schedule(self, step: int, rates: Rates) -> Rates:
        """Set `lr_after` after the burn-in, and restart the optimizer at its end."""
        if not self.burnt_in(step):
            return rates
        restart = bool(step > 0 and not self.burnt_in(step - 1))
        lr = rates.lr / self.hparams.lr * self.hparams.lr_after if self.hparams.lr else rates.lr
        return rates._replace(lr=lr, restart=restart)
