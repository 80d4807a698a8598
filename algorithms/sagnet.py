"""Style-agnostic networks."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, register
from oodbench.hparams import hparam, log_uniform
from oodbench.networks.base import Network
from oodbench.tasks import Task

EPSILON = 1e-5
"""Added to variances (the paper's code)."""


def moments(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each feature vector (N, F) minus its mean, the mean, and the standard deviation.

    Shapes (N, F), (N, 1), (N, 1); of one feature alone the variance is 0.
    """
    mean = features.mean(1, keepdim=True)
    centred = features - mean
    squares = centred.square().sum(1, keepdim=True)
    return centred, mean, (squares / max(1, features.shape[1] - 1) + EPSILON).sqrt()


def with_other_style(features: Tensor, order: Tensor, share: Tensor) -> Tensor:
    """Features (N, F) with moments mixed, by `share` (N, 1), with those of the examples `order`."""
    centred, mean, deviation = moments(features)
    mixed = torch.lerp(mean[order], mean, share)
    variance = torch.lerp(deviation[order].square(), deviation.square(), share)
    return centred * (variance.sqrt() / deviation) + mixed


def with_other_content(features: Tensor, order: Tensor) -> Tensor:
    """The contents of the examples `order`, detached, in the style of each example, (N, F)."""
    centred, mean, deviation = moments(features)
    content = (centred / deviation).detach()[order]
    return content * deviation + mean


def uniform_losses(task: Task, logits: Tensor) -> Tensor:
    """The cross-entropy of each prediction with the uniform distribution over classes, (N,)."""
    if task.kind == "binary":
        scores = logits.squeeze(-1)
        return (F.softplus(scores) + F.softplus(-scores)) / 2
    return -logits.log_softmax(-1).mean(-1)


@register("SagNet", paper="arXiv:1910.11645")
class SagNet(Algorithm):
    """The mean risk at features of a random style, whose original style does not predict the target.

    The style of an example is the mean and the variance of its features, its content the features
    normalised by these. Three steps in turn, as in algorithm 1, where `shuffled` means from another example
    of the batch:
    network <- a step on l(classifier(content, a style + (1 - a) style shuffled)), a uniform on [0, 1);
    style head <- a step on l(head(content shuffled, style)), of fixed features;
    featurizer <- a step on adversary_weight * cross-entropy(uniform, head(content shuffled, style)).
    Shuffled contents are constants, and every step draws a new permutation. The second and the third step
    use the same features, computed after the first.

    As in arXiv:2007.01434's code the features are the vector before the classifier, and the adversary
    trains everything below it; the paper's style is that of the channels of an inner map, and its adversary
    trains only batch normalisation's parameters, with clipped gradients. One optimizer trains the network
    in both of its steps, so that weight decay acts on the featurizer in both.
    """

    changes = "adversarial"
    needs = Needs(classes=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434, D.2."""

        adversary_weight: float = hparam(0.1, log_uniform(1e-2, 1e1), low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.style = nn.Linear(network.num_features, problem.task.num_outputs)

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """An optimizer of the network, and one of the style head."""
        modules = {"main": self.network, "style": self.style}
        return {name: self.optimizer_of(each.parameters()) for name, each in modules.items()}

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The shares a, (E * B, 1), and an order of all examples for each step, (3, E * B)."""
        count = batch.x.shape[0] * batch.x.shape[1]
        orders = [torch.randperm(count, generator=generator) for _ in range(3)]
        share = torch.rand(count, 1, generator=generator)
        return {"share": share, "orders": torch.stack(orders)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Two passes and three steps; `loss` is the first step's."""
        task, network, share = self.problem.task, self.network, batch.noise["share"]
        x, y = batch.x.flatten(0, 1), batch.y.flatten(0, 1)
        of_network, of_style, of_featurizer = batch.noise["orders"]

        restyled = with_other_style(self.featurized(x), of_network, share.to(x.dtype))
        with self.precision(x):
            logits = network.classifier(restyled)
        loss = task.losses(logits.to(restyled.dtype), y).mean()
        self.descend(loss, step)

        features = self.featurized(x)
        guesses = self.style(with_other_content(features.detach(), of_style))
        style_loss = task.losses(guesses, y).mean()
        self.descend(style_loss, step, "style")

        # the classifier gets no gradient here, so the optimizer skips it
        guesses = self.style(with_other_content(features, of_featurizer))
        adversarial = self.hparams.adversary_weight * uniform_losses(task, guesses).mean()
        self.descend(adversarial, step)
        return {
            "loss": loss.detach(),
            "style_loss": style_loss.detach(),
            "adversarial_loss": adversarial.detach(),
        }
