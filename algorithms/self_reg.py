"""Self-supervised contrastive regularization."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Outputs, Problem, beta, register
from oodbench.networks.base import Network


def in_class_partners(targets: Tensor, noise: Tensor) -> Tensor:
    """Another index of each example's class, (N,), by a random permutation in each class.

    `targets` (N,) are class numbers, `noise` (N,) is uniform on [0, 1).
    """
    plain = targets.argsort(stable=True)
    shuffled = (targets.double() + noise).argsort()
    return torch.zeros_like(plain).scatter(0, plain, shuffled)


@register("SelfReg", paper="arXiv:2104.09841")
class SelfReg(Algorithm):
    """The mean risk, with predictions and features like those of other examples of the same class.

    Of all environments' examples, with z logits, phi features, h a projection of phi, p and p' two
    permutations within the classes, l ~ Beta(1/2, 1/2) one number a step, and mix = l p + (1 - l) p':
    R + min(R, 1) [l (d(z, z_p) + 0.3 d(phi, h_p)) + (1 - l) (d(z, z_mix) + 0.3 d(phi, h_mix))],
    d the mean squared difference, min(R, 1) a constant. So are constants and projection in
    arXiv:2007.01434's code, whose optimizer leaves the projection as it started; the paper's also
    averages the weights over steps, here an option of the run. The projection normalises by its batch,
    in training alone, so that it keeps no statistics.
    """

    changes = "penalty"

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Ask for classes: examples of the same class are compared."""
        if problem.task.kind not in ("binary", "multiclass"):
            return "it compares examples of the same class"
        return super().skip(problem)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        inputs = network.num_features
        width = inputs if inputs == 2048 else 2 * inputs
        layers: list[nn.Module] = []
        for i, o in ((inputs, width), (width, width), (width, inputs)):
            layers += [nn.Linear(i, o), nn.BatchNorm1d(o, track_running_stats=False), nn.ReLU()]
        self.projection = nn.Sequential(*layers[:-1])

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Random numbers that order the examples of a class, twice, (2, E, B), and the share l, ()."""
        noise = torch.rand(2, *batch.x.shape[:2], generator=generator, dtype=torch.float64)
        return {"noise": noise, "share": beta(0.5, (1,), generator)[0]}

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk and the weighted differences."""
        targets, noise = out.targets.flatten(), out.batch.noise
        logits, features = out.logits.flatten(0, 1), out.features.flatten(0, 1)
        share = noise["share"].to(logits.dtype)
        p, other = (in_class_partners(targets, each.flatten()) for each in noise["noise"])
        risk = out.risks.mean()
        penalty = risk.new_zeros(())
        projected = self.projection(features)
        for own, others, weight in ((logits, logits, 1.0), (features, projected, 0.3)):
            mix = torch.lerp(others[other], others[p], share)
            differences = torch.lerp(F.mse_loss(own, mix), F.mse_loss(own, others[p]), share)
            penalty = penalty + weight * differences
        out.metrics["penalty"] = penalty.detach()
        return risk + risk.detach().clamp(max=1.0) * penalty
