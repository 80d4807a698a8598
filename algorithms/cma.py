"""Moment alignment: equal gradients and Hessians of the classifier in every environment."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vjp, vmap

from oodbench.algorithms import Batch, Needs, Outputs, Problem, register
from oodbench.errors import UserError
from oodbench.hparams import choice, hparam, log_uniform
from oodbench.networks.base import Network

from .penalized import Penalized

PROBES = 2**24
"""The most random signs in a step of `Hutchinson`; above, the diagonal is computed."""


class Moments(Penalized):
    """Mean risk plus the distances of the environments' gradients and Hessians from their means.

    Both are with respect to the weights and the bias of the linear classifier, with C outputs of F
    features. As a risk's gradient is mean_b s_b x_b' and its Hessian mean_b A_b (x) x_b x_b', with features
    x_b (and a 1 for the bias), s_b the gradient and A_b the Hessian of a loss by the logits, no backward
    pass is needed for them. The weights are zero before `anneal_steps`.
    """

    needs = Needs(environments=2, feature_vector=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """The authors' methods have the whole penalty from the first step."""

        initial_weight: float = hparam(0.0, low=0.0)
        anneal_steps: int | float = hparam(0, low=0)
        divide_by_weight: bool = hparam(False)
        gradient_weight: float = hparam(5e-3, log_uniform(1e-3, 1e-1), low=0.0)
        hessian_weight: float = hparam(1e-4, log_uniform(1e-5, 1e-3), low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        head = network.classifier
        if not isinstance(head, nn.Linear):
            name = type(self).__name__
            raise UserError(f"{name} needs a network whose classifier is a single linear layer")
        self.has_bias = head.bias is not None
        self.head_shape = (head.out_features, head.in_features + self.has_bias)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """Leave out both distances, which is ERM."""
        return {"gradient_weight": 0.0, "hessian_weight": 0.0}

    def final_weight(self, step: int) -> float:
        """One, as the penalty has two weights inside."""
        return 1.0

    def penalty(self, out: Outputs) -> Tensor:
        """The weighted sum of the two distances."""
        gradients = (self.slopes(out)(out.logits).mT @ self.inputs(out)) / out.logits.shape[1]
        distances = {
            "gradient distance": self.gradient_distance(gradients),
            "Hessian distance": self.hessian_distance(out, gradients),
        }
        out.metrics.update((name, value.detach()) for name, value in distances.items())
        of_gradients, of_hessians = distances.values()
        h = self.hparams
        return h.gradient_weight * of_gradients + h.hessian_weight * of_hessians

    def inputs(self, out: Outputs) -> Tensor:
        """The head's inputs, (E, B, F), with a 1 for a bias."""
        return F.pad(out.features, (0, 1), value=1.0) if self.has_bias else out.features

    def slopes(self, out: Outputs) -> Callable[[Tensor], Tensor]:
        """The function from logits to the gradients s_b of the losses, (E, B, C)."""
        return lambda logits: out.task.logit_gradients(logits, out.targets)

    def along(self, out: Outputs, directions: Tensor) -> Tensor:
        """A_b times directions (E, B, C) of the logits; A_b is symmetric."""
        pull: Any = vjp(self.slopes(out), out.logits)[1]
        (product,) = pull(directions)
        found: Tensor = product
        return found

    def curvatures(self, out: Outputs) -> Tensor:
        """The Hessians A_b of the losses by the logits, (E, B, C, C)."""
        basis = torch.eye(out.logits.shape[2], dtype=out.logits.dtype, device=out.logits.device)
        columns = vmap(lambda unit: self.along(out, unit.expand_as(out.logits)))(basis)
        return columns.movedim(0, 3)

    def gradient_distance(self, gradients: Tensor) -> Tensor:
        """The mean squared distance of the gradients (E, C, F) from their mean, held constant."""
        return distance(gradients, gradients.mean(0).detach())

    @abstractmethod
    def hessian_distance(self, out: Outputs, gradients: Tensor) -> Tensor:
        """The mean squared distance of the Hessians, or of a function of them, from their mean."""


def distance(values: Tensor, mean: Tensor) -> Tensor:
    """mean_e ||v_e - m||^2 of values (E, ...)."""
    return (values - mean).square().sum() / len(values)


@register("CMA", paper="arXiv:2506.07378")
class CMA(Moments):
    """Mean risk plus the variances over environments of the head's gradient and of its whole Hessian.

    Closed-form moment alignment: mean_e R_e + (gradient_weight * mean_e ||g_e - mean g||^2 + hessian_weight
    * mean_e ||H_e - mean H||_F^2) / C^2, where the authors' code divides gradients and Hessians by the
    number of outputs C. The Hessians, E (C F)^2 numbers, are stored only if they are fewer than the (E B)^2
    products of two examples: <H_e, H_f> = mean_bc <A_b, A_c> (x_b' x_c)^2. Both ways are exact. The authors
    use the products from 70 classes on, and then also add 1e-5 ||x||_1 of the features, which is left out
    here.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Moments.Hparams):
        """The authors' code; ranges of their weights for ResNet-50 are lower, by 5.3 and 28."""

        gradient_weight: float = hparam(5000.0, log_uniform(1e1, 1e4), low=0.0)
        hessian_weight: float = hparam(1000.0, log_uniform(1e1, 1e4), low=0.0)
        anneal_steps: int | float = hparam(0, choice(0.1, 0.3, 0.5, 0.7, 0.9), low=0)

    def gradient_distance(self, gradients: Tensor) -> Tensor:
        """mean_e ||g_e - mean g||^2 / C^2."""
        return distance(gradients, gradients.mean(0)) / gradients.shape[1] ** 2

    def hessian_distance(self, out: Outputs, gradients: Tensor) -> Tensor:
        """mean_e ||H_e - mean H||_F^2 / C^2."""
        x, a = self.inputs(out), self.curvatures(out)
        environments, examples, outputs = out.logits.shape
        if environments * examples**2 > gradients[0].numel() ** 2:
            hessians = torch.einsum("ebkl,ebi,ebj->ekilj", a, x, x) / examples
            return distance(hessians, hessians.mean(0)) / outputs**2
        x, a = x.flatten(0, 1), a.flatten(0, 1).flatten(1)
        products = (a @ a.mT) * (x @ x.mT).square()
        by_pair = products.view(environments, examples, environments, examples).mean((1, 3))
        return (by_pair.diagonal().mean() - by_pair.mean()) / outputs**2


@register("HGP", paper="arXiv:2308.11778")
class HGP(Moments):
    """Mean risk plus the spread of the head's gradients, and of their products with the Hessians.

    Hessian-gradient products, as in the code of arXiv:2506.07378: mean_e R_e + gradient_weight * mean_e
    ||g_e - [mean g]||^2 + hessian_weight * mean_e ||H_e g_e - [mean H mean g]||^2. Brackets are constants
    of the update.
    """

    def hessian_distance(self, out: Outputs, gradients: Tensor) -> Tensor:
        """mean_e ||H_e g_e - [mean H mean g]||^2."""
        mean = gradients.mean(0).expand_as(gradients)
        of_mean = self.product(out, mean).mean(0).detach()
        return distance(self.product(out, gradients), of_mean)

    def product(self, out: Outputs, vectors: Tensor) -> Tensor:
        """H_e v_e for vectors (E, C, F) of the head's parameters: mean_b A_b (v_e x_b) x_b'."""
        x = self.inputs(out)
        return self.along(out, x @ vectors.mT).mT @ x / x.shape[1]


@register("Hutchinson", paper="arXiv:2308.11778")
class Hutchinson(Moments):
    """Mean risk plus the spread of the head's gradients and of the diagonals of its Hessians.

    mean_e R_e + gradient_weight * mean_e ||g_e - [mean g]||^2 + hessian_weight * mean_e ||d_e - [d]||^2, as
    in the code of arXiv:2506.07378. The diagonals d_e of H_e and d of the mean H are Hutchinson's
    estimates: means of z * H z over `probes` vectors z of random signs, drawn for each of the E + 1. They
    are computed, as d_e = mean_b diag(A_b) x_b^2, with `probes` = 0, and where a step would take more than
    2^24 signs: with 300 probes, three environments and a ResNet-50, from 7 classes on. Brackets are
    constants of the update.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Moments.Hparams):
        """The authors' code, whose ranges are far above its defaults."""

        gradient_weight: float = hparam(5e-3, log_uniform(1e2, 1e6), low=0.0)
        hessian_weight: float = hparam(1e-3, log_uniform(1e1, 1e4), low=0.0)
        probes: int = hparam(300, low=0)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The bits of the signs, (probes, E + 1, C, F), for the mean's Hessian last."""
        shape = (self.hparams.probes, len(batch.x) + 1, *self.head_shape)
        if not 0 < torch.Size(shape).numel() <= PROBES:
            return {}
        return {"bits": torch.randint(2, shape, generator=generator, dtype=torch.int8)}

    def hessian_distance(self, out: Outputs, gradients: Tensor) -> Tensor:
        """mean_e ||d_e - [d]||^2."""
        if "bits" not in out.batch.noise:
            curvatures = self.curvatures(out).diagonal(dim1=2, dim2=3)
            diagonals = curvatures.mT @ self.inputs(out).square() / out.logits.shape[1]
            return distance(diagonals, diagonals.mean(0).detach())
        signs = 2 * out.batch.noise["bits"].to(out.logits.dtype) - 1
        diagonals = self.estimates(out, signs[:, :-1])
        mean = self.estimates(out, signs[:, -1:].expand_as(signs[:, :-1])).mean(0)
        return distance(diagonals, mean.detach())

    def estimates(self, out: Outputs, signs: Tensor) -> Tensor:
        """The means of z * H_e z over signs z (probes, E, C, F), (E, C, F)."""
        x = self.inputs(out)
        moved = vmap(lambda z: self.along(out, x @ z.mT))(signs)
        total = torch.einsum("rebk,rekf,ebf->ekf", moved, signs, x)
        return total / (len(signs) * x.shape[1])
