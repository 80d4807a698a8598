"""Invariance with an information bottleneck: IB-ERM and IB-IRM."""

from dataclasses import dataclass

from torch import Tensor

from oodbench.algorithms import Needs, Outputs, Problem, first_step, register
from oodbench.hparams import altered, hparam, log_uniform

from .irm import IRM
from .penalized import Penalized


def bottleneck(out: Outputs, of: str, pooled: bool) -> Tensor:
    """The unbiased variance over examples, averaged over features or logits; 0 for a single example.

    Variances are within environments, or with `pooled` over all examples together.
    """
    values = out.features if of == "features" else out.logits
    if pooled:
        values = values.flatten(0, 1).unsqueeze(0)
    examples = values.shape[1]
    centred = values - values.mean(1, keepdim=True)  # torch's `var` takes several times as long
    return centred.square().mean() * (examples / max(1, examples - 1))


@register("IB_ERM", paper="arXiv:2106.06607")
class IBERM(Penalized):
    """Mean risk plus the variance of the features, which limits the information that they keep.

    R + penalty_weight * mean_e mean_k Var_i(feature k of example i of e), with unbiased variances, and
    without a penalty before `anneal_steps` (arXiv:2007.01434's code). The paper's code for linear
    problems takes the variance of the logits over the pooled examples: `variance_of` logits, `pooled`.
    """

    needs = Needs(feature_vector=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """Ranges: arXiv:2007.01434's registry."""

        initial_weight: float = hparam(0.0, low=0.0)
        penalty_weight: float = hparam(100.0, log_uniform(1e-1, 1e5), low=0.0)
        variance_of: str = hparam("features", options=("features", "logits"))
        pooled: bool = hparam(False)

    def penalty(self, out: Outputs) -> Tensor:
        """The mean variance."""
        return bottleneck(out, self.hparams.variance_of, self.hparams.pooled)


@register("IB_IRM", paper="arXiv:2106.06607")
class IBIRM(IRM):
    """IRM plus the variance of the features: invariance and an information bottleneck.

    R + penalty_weight * IRM's penalty + bottleneck_weight * that of `IB_ERM`. Each penalty has an annealing
    step, before which IRM's weight is `initial_weight` and the bottleneck's 0. The optimizer restarts at
    both steps, and `divide_by_weight` divides everything by IRM's weight. The paper's code for linear
    problems takes the variance of the logits within environments for IB-IRM, pooled for IB-ERM.
    """

    needs = Needs(feature_vector=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(IRM.Hparams):
        """Ranges: arXiv:2007.01434's registry."""

        bottleneck_weight: float = hparam(100.0, log_uniform(1e-1, 1e5), low=0.0)
        bottleneck_anneal_steps: int | float = altered(Penalized.Hparams, "anneal_steps", {})
        variance_of: str = hparam("features", options=("features", "logits"))
        pooled: bool = hparam(False)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out both penalties."""
        return {"penalty_weight": 0.0, "anneal_steps": 0, "bottleneck_weight": 0.0}

    def bottleneck_weight(self, step: int) -> float:
        """The bottleneck's weight at `step`."""
        late = step >= first_step(self.hparams.bottleneck_anneal_steps, self.problem.steps)
        return late * self.hparams.bottleneck_weight

    def objective(self, out: Outputs) -> Tensor:
        """IRM's objective plus the bottleneck, over the same divisor."""
        variance = bottleneck(out, self.hparams.variance_of, self.hparams.pooled)
        out.metrics["bottleneck"] = variance.detach()
        weight = self.bottleneck_weight(out.step) / self.divisor(out.step)
        return super().objective(out) + weight * variance

    def switches(self, step: int) -> bool:
        """Whether either weight changes at `step`."""
        switch = first_step(self.hparams.bottleneck_anneal_steps, self.problem.steps)
        return bool(step == switch > 0) or super().switches(step)
