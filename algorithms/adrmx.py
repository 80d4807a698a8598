"""Additive disentanglement of domain features with remixing."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Needs, Outputs, Problem, register
from oodbench.hparams import choice, hparam
from oodbench.networks.base import Network

from .dann import reverse_gradient

TEMPERATURE, EPSILON, WIDTH = 0.07, 1e-5, 256


def contrast(features: Tensor, targets: Tensor) -> Tensor:
    """The supervised contrastive loss of N examples (N, F), as in arXiv:2007.01434's code.

    Each example with others of its class contributes the mean over them of -log(e_ij / (sum_k e_ik + 2
    epsilon) + epsilon), e_ij = exp(cosine / 0.07); the sum is divided by one more than the number of such
    examples.
    """
    unit = F.normalize(features, dim=1, eps=1e-2)  # else the round-off of phi - phi has a direction
    others = ~torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    e = torch.where(others, (unit @ unit.mT / TEMPERATURE).exp(), 0.0)
    logs = (e / (e.sum(1, keepdim=True) + 2 * EPSILON) + EPSILON).log()
    same = (targets[:, None] == targets) & others
    count = same.sum(1)
    terms = torch.where(same, logs, 0.0).sum(1) / count.clamp(min=1)
    return -terms.sum() / ((count > 0).sum() + 1)


@register("ADRMX", paper="arXiv:2308.06624")
class ADRMX(Algorithm):
    """The risks of features and of features without their environment's part, and four penalties.

    With phi the network's features, psi those of a second featurizer, d = phi - psi, h the network's
    classifier and g a second one, the loss is R(h(phi)) + R(g(d)), plus domain_weight times the
    cross-entropy of a linear head of psi that predicts the environment, contrast_weight times the
    supervised contrastive losses of phi and of d, remix_weight / C times the sum over the C classes of
    l(h(d_i + psi_j), y_i) for a random pair (i, j) of the class from two environments, and the loss of a
    discriminator that predicts the environment from d, which d opposes with weight `adversary_weight`.
    Predictions are h(phi). arXiv:2007.01434's code takes i and j from the first examples of the batch
    whatever their classes (the paper does as here), trains the discriminator alone in two of three steps
    instead of reversing its gradient, and its heads have three layers. Features shorter than 0.01 are
    divided by 0.01 in the contrastive losses: two pretrained featurizers start equal, and phi - psi would
    then have a direction of round-off.
    """

    changes = "adversarial"
    needs = Needs(environments=2, classes=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """arXiv:2007.01434's code, which draws the depth alone."""

        contrast_weight: float = hparam(1.0, low=0.0)
        domain_weight: float = hparam(1.0, low=0.0)
        adversary_weight: float = hparam(0.75, low=0.0)
        remix_weight: float = hparam(1.0, low=0.0)
        discriminator_depth: int = hparam(9, choice(8, 9, 10), low=2)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        count, features = len(problem.environments), network.num_features
        self.of_environment = copy.deepcopy(network.featurizer)
        if not problem.pretrained:  # a pretrained one starts from the same weights
            for module in self.of_environment.modules():
                getattr(module, "reset_parameters", lambda: None)()
        self.environment_head = nn.Linear(features, count)
        self.rest_head = nn.Linear(features, problem.task.num_outputs)
        layers: list[nn.Module] = [nn.Linear(features, WIDTH), nn.ReLU()]
        for _ in range(hparams.discriminator_depth - 2):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.discriminator = nn.Sequential(*layers, nn.Linear(WIDTH, count))

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Random numbers that pick each class's two examples, (2, E, B)."""
        shape = (2, *batch.x.shape[:2])
        return {"pairs": torch.rand(shape, generator=generator, dtype=torch.float64)}

    def objective(self, out: Outputs) -> Tensor:
        """The sum of the seven terms."""
        h, task, classifier = self.hparams, out.task, self.network.classifier
        x = out.batch.x.flatten(0, 1)
        with self.precision(x):
            psi = self.of_environment(x).to(out.features.dtype)
        phi, targets = out.features.flatten(0, 1), out.targets.flatten(0, 1)
        rest = phi - psi
        places = out.of_step(torch.arange(len(self.problem.environments), device=x.device))
        places = places.repeat_interleave(out.losses.shape[1])
        domain = F.cross_entropy(self.environment_head(psi), places)
        guesses = self.discriminator(reverse_gradient(rest, h.adversary_weight))
        adversarial = F.cross_entropy(guesses, places)
        contrasts = contrast(phi, targets) + contrast(rest, targets)
        i, j, exists = self._pairs(targets, places, out.batch.noise["pairs"].flatten(1))
        remixed = task.losses(classifier(rest[i] + psi[j]), targets[i])
        remix = torch.where(exists, remixed, 0.0).mean()
        out.metrics["discriminator_loss"] = adversarial.detach()
        total: Tensor = out.risks.mean() + task.losses(self.rest_head(rest), targets).mean()
        total = total + h.domain_weight * domain + adversarial
        total = total + h.contrast_weight * contrasts + h.remix_weight * remix
        return total

    def _pairs(
        self, targets: Tensor, places: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of a pair of each class from two environments, and whether there is one, (C,) each."""
        classes = torch.arange(max(2, self.problem.task.num_outputs), device=targets.device)
        member = targets == classes[:, None]
        i = torch.where(member, noise[0], -1.0).argmax(1)
        other = member & (places != places[i][:, None])
        return i, torch.where(other, noise[1], -1.0).argmax(1), other.any(1)
