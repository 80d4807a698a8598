"""Methods that add a weighted penalty to the risk: IRM, V-REx, MM-REx."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, Problem, first_step
from oodbench.hparams import altered, choice, hparam, log_uniform, uniform
from oodbench.optimizers import Rates

NEVER = 0.999999
"""A share of the steps that runs of up to 500,000 never reach; below 1 in float32 and in six digits."""


def summed_risks_decay() -> float:
    """The weight decay of methods whose code on small images adds 1e-3 ||theta||^2 to a sum of two risks.

    For mean risks this is half the weight decay of IRM's code, and the range is halved too.
    """
    half = (1e-3, log_uniform(1e-5, 1e-2))
    decay: float = altered(Algorithm.Hparams, "weight_decay", {"small_images": half})
    return decay


class Penalized(Algorithm, ABC):
    """Mean risk plus a weighted penalty, with the schedule that IRM and REx share.

    The weight is `initial_weight` before step `anneal_steps` (below 1: a share of the run's steps), and
    `penalty_weight` from then on. With `divide_by_weight` loss and weight decay are divided by
    weight / initial_weight if that exceeds 1, as in the code of arXiv:1907.02893 and arXiv:2003.00688,
    where the initial weight is 1 (an initial weight of 0 counts as 1 here). With `reset_optimizer` the
    optimizer restarts at the switch (arXiv:2007.01434's code). A subclass implements `penalty` and has
    either a hyperparameter `penalty_weight` or a method `final_weight`.
    """

    changes = "penalty"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Ranges: arXiv:2007.01434, D.2, as shares of its 5,001 steps (one draw in 13 exceeds them and
        never switches); for small images the grid of arXiv:1907.02893's code, as shares of 501; for
        synthetic data that of arXiv:2009.00329, of 600.
        """

        initial_weight: float = hparam(1.0, low=0.0)
        anneal_steps: int | float = hparam(
            0.1,
            log_uniform(1 / 5001, 1e4 / 5001, NEVER),
            low=0,
            by_family={
                "synthetic": (0.1, choice(0.0, 4 / 600, 8 / 600, 16 / 600, 32 / 600)),
                "linear": (0, None),
                "small_images": (0.2, uniform(0.1, 0.5)),
            },
        )
        divide_by_weight: bool = hparam(False, by_family={"small_images": (True, None)})
        reset_optimizer: bool = hparam(True, by_family={"small_images": (False, None)})

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """Leave out the penalty before and after the switch, which is ERM."""
        return {"penalty_weight": 0.0, "anneal_steps": 0}

    @abstractmethod
    def penalty(self, out: Outputs) -> Tensor:
        """The penalty, a scalar."""

    def final_weight(self, step: int) -> float:
        """The penalty's weight at a `step` from `anneal_steps` on."""
        of_subclass: Any = self.hparams
        weight: float = of_subclass.penalty_weight
        return weight

    def weight(self, step: int) -> float:
        """The penalty's weight at `step`."""
        initial = self.hparams.initial_weight
        later = step >= first_step(self.hparams.anneal_steps, self.problem.steps)
        return initial + later * (self.final_weight(step) - initial)

    def divisor(self, step: int) -> float:
        """The divisor of loss and weight decay at `step`: weight / initial weight, at least 1."""
        initial = self.hparams.initial_weight
        excess = self.weight(step) / (initial + (initial == 0)) - 1
        return 1 + self.hparams.divide_by_weight * (excess > 0) * excess

    def objective(self, out: Outputs) -> Tensor:
        """(Mean risk + weight * penalty) / divisor."""
        penalty = self.penalty(out)
        out.metrics["penalty"] = penalty.detach()
        total = out.risks.mean() + self.weight(out.step) * penalty
        return total / self.divisor(out.step)

    def schedule(self, step: int, rates: Rates) -> Rates:
        """Divide weight decay like the loss; with `reset_optimizer`, restart at the switch."""
        restart = self.switches(step) and self.hparams.reset_optimizer
        decay = rates.weight_decay / self.divisor(step)
        return rates._replace(weight_decay=decay, restart=restart)

    def switches(self, step: int) -> bool:
        """Whether the weight changes at `step`."""
        return bool(step == first_step(self.hparams.anneal_steps, self.problem.steps) > 0)
