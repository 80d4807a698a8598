"""Deep feature reweighting."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Outputs, register
from oodbench.hparams import hparam, log_uniform
from oodbench.optimizers import Rates
from oodbench.steps import Drawing

from .crt import Rebalanced


@register("DFR", paper="arXiv:2204.02937")
class DFR(Rebalanced):
    """ERM, then a new classifier trained on balanced groups, with a penalty on its weights.

    The mean loss plus `penalty_weight` times the sum of the weights' absolute values, without weight decay,
    on balanced examples that the first stage never sees. `held_out` is their share of every environment's
    training examples; 0 trains both stages on all examples, as in the paper's DFR^Tr_Tr. `subg` subsamples
    every group to the size of the rarest. Deviations: gradient steps, as in SubpopBench (arXiv:2302.12254),
    where the paper averages logistic regressions on standardised features of several such subsets; held-out
    training examples instead of validation examples, which selection needs.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Rebalanced.Hparams):
        """SubpopBench's penalty; the paper also holds a fifth of the training examples out."""

        second_sampling: str = hparam("subg", options=("rwy", "rwg", "subg"))
        penalty_weight: float = hparam(0.1, log_uniform(1e-2, 10**0.5), low=0.0)
        held_out: float = hparam(0.2, low=0.0, high=0.9)

    def drawing_at(self, step: int) -> Drawing:
        """Draw balanced examples in the second stage, from those that the first stage holds out."""
        drawing = super().drawing_at(step)
        return drawing._replace(held_out=self.hparams.held_out, of_held_out=self.retrains(step))

    def schedule(self, step: int, rates: Rates) -> Rates:
        """No weight decay in the second stage."""
        rates = super().schedule(step, rates)
        return rates._replace(weight_decay=0.0) if self.retrains(step) else rates

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk, plus the penalty in the second stage."""
        risk = super().objective(out)
        if not self.retrains(out.step):
            return risk
        matrices = [p for p in self.network.classifier.parameters() if p.dim() > 1]
        penalty: Tensor = sum((p.abs().sum() for p in matrices), start=risk.new_zeros(()))
        out.metrics["penalty"] = penalty.detach()
        return risk + self.hparams.penalty_weight * penalty
