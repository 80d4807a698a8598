"""Conditional value at risk, over environments and over examples."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import hparam, log_uniform, uniform


@register("CVaR", paper="Rockafellar and Uryasev, Optimization of conditional value-at-risk (2000)")
class CVaR(Algorithm):
    """The mean risk of the worst share of the training environments; up to a share of 1/E it is RI.

    min_t t + mean_e max(R_e - t, 0) / share, which is the mean of the share * E largest risks, the last of
    them counted in part. A share of 1 is ERM, one of at most 1 / E the worst environment's risk: the
    default equals `RI` with up to four environments, the whole range with two. The paper's level is
    1 - share.
    """

    needs = Needs(environments=2)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: one minus those of `EQRM`, whose quantile bounds the same risks."""

        share: float = hparam(0.25, uniform(0.01, 0.5), low=1e-6, high=1.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """All environments."""
        return {"share": 1.0}

    def objective(self, out: Outputs) -> Tensor:
        """The mean of the share * E largest risks; the last may count in part."""
        risks = out.risks.sort(descending=True).values
        chosen = self.hparams.share * len(risks)
        ranks = torch.arange(len(risks), dtype=risks.dtype, device=risks.device)
        return ((chosen - ranks).clamp(0, 1) * risks).sum() / chosen


@register("CVaRDRO", paper="arXiv:1810.08750")
class CVaRDRO(CVaR):
    """The mean loss of the worst share of a step's examples, regardless of environments and groups.

    min_t t + mean_i max(l_i - t, 0) / share over all examples of a step: the batch's estimate of
    arXiv:2010.05893 (section 3), whose alpha is the share. 1 is ERM, at most 1 / (E B) the worst example.
    """

    needs = Needs()

    @dataclass(frozen=True, kw_only=True)
    class Hparams(CVaR.Hparams):
        """SubpopBench's default and range (arXiv:2302.12254)."""

        share: float = hparam(0.1, log_uniform(1e-2, 1.0), low=1e-6, high=1.0)

    def objective(self, out: Outputs) -> Tensor:
        """CVaR with every example as an environment."""
        return super().objective(replace(out, risks=out.losses.flatten()))
