"""Methods that start as ERM and go on with an objective and a learning rate of their own: EQRM, RDM."""

from dataclasses import dataclass
from typing import Any

from oodbench.algorithms import Algorithm, Problem, first_step
from oodbench.hparams import hparam
from oodbench.optimizers import Rates


class BurnIn(Algorithm):
    """ERM up to step `burn_in`, below 1 a share of the run's steps, then an objective of a subclass.

    From that step on a new optimizer has the learning rate `lr_after` in place of `lr`, on the same
    schedule. A subclass gives `burn_in` and `lr_after` their defaults.
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

    def burnt_in(self, step: int) -> Any:
        """Whether `step` is past the burn-in; a tensor where the hyperparameter is one."""
        return step >= first_step(self.hparams.burn_in, self.problem.steps)

    def rates(self, step: int) -> Rates:
        """With `lr_after` past the burn-in."""
        rates = super().rates(step)
        if not self.burnt_in(step) or not self.hparams.lr:
            return rates
        return rates._replace(lr=rates.lr / self.hparams.lr * self.hparams.lr_after)

    def restarts(self, step: int) -> bool:
        """Where the burn-in ends."""
        return bool(step > 0 and self.burnt_in(step) and not self.burnt_in(step - 1))
