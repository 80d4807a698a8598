"""Uniform risk minimisation."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from oodbench.algorithms import Algorithm, Batch, Needs, Outputs, Problem, register
from oodbench.hparams import choice, hparam, uniform
from oodbench.networks.base import Network

RANGES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "tanh": (torch.tanh, -1.0),
    "relu": (F.relu, 0.0),
}
"""The function that bounds the features, and the lower end of the uniform noise; the upper end is 1."""
HIDDEN = 100


@register(
    "URM",
    paper="Uniformly distributed feature representations for fair and robust learning (TMLR 2024)",
)
class URM(Algorithm):
    """The mean risk, with features that a discriminator cannot distinguish from uniform noise.

    With s = tanh or relu, phi = s(the network's features), u uniform on [-1, 1] or [0, 1], and
    l(z, 1) = log(1 + exp(-z)), l(z, 0) = log(1 + exp(z)): network and discriminator D minimise
    mean_e R_e(classifier(phi)) + weight * mean l(D(phi), 1) for the network, and mean l(D(u),
    1) + weight * mean l(D(phi), 0) for D. arXiv:2007.01434's code has a second optimizer for D, which uses
    features from before the network's step; a single optimizer does the same if their rates agree, as at
    its defaults. Its random draws of D's rate are about ten times smaller.
    """

    changes = "adversarial"
    needs = Needs(feature_vector=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults and ranges: arXiv:2007.01434's code."""

        penalty_weight: float = hparam(0.1, uniform(0.0, 0.2), low=0.0)
        squash: str = hparam("tanh", choice("tanh", "relu"), options=("tanh", "relu"))
        discriminator_layers: int = hparam(1, choice(1, 2, 3), low=0)
        """Hidden layers after the first."""

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        layers: list[nn.Module] = [nn.Linear(network.num_features, HIDDEN), nn.LeakyReLU()]
        for _ in range(hparams.discriminator_layers):
            layers += [nn.Linear(HIDDEN, HIDDEN), nn.LeakyReLU()]
        self.discriminator = nn.Sequential(*layers, nn.Linear(HIDDEN, 1))

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw uniform features, (E, B, F)."""
        shape = (*batch.x.shape[:2], self.network.num_features)
        u = torch.rand(shape, generator=generator, dtype=torch.float64)
        low = RANGES[self.hparams.squash][1]
        return {"u": low + (1 - low) * u}

    def _squashed(self, features: Tensor) -> Tensor:
        squash, _ = RANGES[self.hparams.squash]
        return squash(features)

    def objective(self, out: Outputs) -> Tensor:
        """The sum of both losses, each with gradients for its own part alone."""
        phi, weight = self._squashed(out.features), self.hparams.penalty_weight
        risk = out.task.losses(self.network.classifier(phi), out.targets).mean()
        fixed = {n: p.detach() for n, p in self.discriminator.named_parameters()}
        taken = F.softplus(-functional_call(self.discriminator, fixed, (phi,))).mean()
        real = F.softplus(-self.discriminator(out.batch.noise["u"].to(phi.dtype))).mean()
        made = F.softplus(self.discriminator(phi.detach())).mean()
        out.metrics["discriminator_loss"] = (real + weight * made).detach()
        return risk + weight * taken + real + weight * made

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape)."""
        logits: Tensor = self.network.classifier(self._squashed(self.network.featurizer(x)))
        return logits
