"""Domain-adversarial training, plain and class-conditional."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import choice, hparam, log_uniform
from oodbench.networks.base import Network


def reverse_gradient(x: Tensor, weight: float) -> Tensor:
    """R(x) = x with dR/dx = -weight (arXiv:1505.07818, eqs. 16 and 17)."""
    return torch.lerp(x, x.detach(), 1 + weight)  # x + (1 + weight) * (x.detach() - x)


@register("DANN", paper="arXiv:1505.07818")
class DANN(Algorithm):
    """Mean risk, with features from which a discriminator cannot predict the training environment.

    min over phi, w, max over D of mean_e R_e - lambda mean_ei l(D(phi(x_ei)), e). The discriminator (one
    hidden layer on the features) minimises the cross-entropy of the environment's number; the features
    maximise it, weighted by penalty_weight * (2 / (1 + exp(-10 p)) - 1) at progress p (schedule `ganin`) or
    by penalty_weight (`constant`). One optimizer trains both, through a layer that reverses the gradient;
    arXiv:2007.01434 alternates between two. There is no target environment: the discriminator's classes are
    the training environments.
    """

    needs = Needs(environments=2, feature_vector=True)
    changes = "adversarial"
    conditional = False

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Width: arXiv:2009.00329's search; weight: arXiv:2007.01434, D.2."""

        penalty_weight: float = hparam(1.0, log_uniform(1e-2, 1e2), low=0.0)
        schedule: str = hparam("ganin", options=("ganin", "constant"))
        discriminator_width: int = hparam(256, choice(256, 512), low=1)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        inputs = network.num_features
        if self.conditional:
            inputs += problem.task.num_outputs + (problem.task.kind == "binary")
        width = hparams.discriminator_width
        self.discriminator = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, len(problem.environments))
        )

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Weight 0 is ERM: the discriminator still learns, without an effect on the predictor."""
        return {"penalty_weight": 0.0}

    def reversal_weight(self, step: int) -> float:
        """The weight of the reversed gradient at `step`."""
        weight = self.hparams.penalty_weight
        if self.hparams.schedule == "constant":
            return weight
        return weight * (2 / (1 + math.exp(-10 * step / self.problem.steps)) - 1)

    def objective(self, out: Outputs) -> Tensor:
        """Mean risk plus the discriminator's cross-entropy on reversed features."""
        features = reverse_gradient(out.features, self.reversal_weight(out.step))
        if self.conditional:
            features = torch.cat([features, self.condition(out)], -1)
        logits = self.discriminator(features.flatten(0, 1))
        there = out.of_step(torch.arange(len(self.problem.environments), device=logits.device))
        loss = F.cross_entropy(logits, there.repeat_interleave(out.losses.shape[1]))
        out.metrics["discriminator_loss"] = loss.detach()
        return out.risks.mean() + loss

    def condition(self, out: Outputs) -> Tensor:
        """The targets as inputs of the discriminator, (E, B, K): one-hot classes or real numbers."""
        if out.task.kind in ("regression", "distribution", "multilabel"):
            return out.targets.nan_to_num(0.5)  # unknown labels
        classes = max(out.task.num_outputs, 2)
        return F.one_hot(out.targets.long(), classes).to(out.logits.dtype)


@register("CDANN", paper="arXiv:1505.07818; class-conditional after Li et al. 2018 (ECCV, CIAN)")
class CDANN(DANN):
    """DANN whose discriminator also sees the target, so that only p(features | target) is matched.

    D(phi(x), y) replaces D(phi(x)) in DANN's objective: the class's one-hot vector is concatenated to the
    features, and all examples have equal weight. arXiv:2007.01434's code adds a learned embedding of the
    class to the features, and its discriminator weighs classes equally; `DANN` lists the other differences.
    """

    conditional = True
