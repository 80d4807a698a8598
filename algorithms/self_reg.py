"""Self-supervised contrastive regularization."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Needs, Outputs, Problem, beta, register
from oodbench.networks.base import Network


def in_class_partners(targets: Tensor, noise: Tensor) -> Tensor:
    """The index (N,) of an example of the same class, by a random permutation within each class.

    `targets` (N,) are class numbers, `noise` (N,) is uniform on [0, 1).
    """
    plain = targets.argsort(stable=True)
    shuffled = (targets.double() + noise).argsort()
    return torch.zeros_like(plain).scatter(0, plain, shuffled)


@register("SelfReg", paper="arXiv:2104.09841")
class SelfReg(Algorithm):
    """The mean risk, with predictions and features like those of other examples of the same class.

    Over all environments' examples, with logits z, features phi, a projection h of phi, two permutations p
    and p' within the classes, one l ~ Beta(1/2, 1/2) per step, and mix = l p + (1 - l) p':
    R + min(R, 1) [l (d(z, z_p) + 0.3 d(phi, h_p)) + (1 - l) (d(z, z_mix) + 0.3 d(phi, h_mix))],
    where d is the mean squared difference and min(R, 1) a constant. Constants and projection are those of
    arXiv:2007.01434's code, whose optimizer does not train the projection; the paper's code also averages
    the weights over steps, here an option of the run. The projection is used only in training, so its batch
    normalisation keeps no running statistics.
    """

    changes = "penalty"
    needs = Needs(classes=True)

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
