"""Images with a rectangle of another image."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, beta, register
from oodbench.hparams import choice, hparam, log_uniform


@register("CutMix", paper="arXiv:1905.04899")
class CutMix(Algorithm):
    """The mean risk of images with a rectangle of another image, and its share of the target.

    With m ~ Beta(alpha, alpha), a rectangle of sqrt(1 - m) times the sides, around a pixel drawn uniformly,
    is clipped at the borders and filled from another image (eq. 1 and 2). All images of a step share one
    rectangle and one permutation across environments; an image has the loss s l(y) + (1 - s) l(y'), where s
    is the share of pixels that it keeps. With probability `1 - probability` a step leaves its images
    unchanged.
    """

    changes = "batch"
    needs = Needs(feature_vector=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults: the paper's on ImageNet; its `probability` on CIFAR is 0.5."""

        alpha: float = hparam(1.0, log_uniform(1e-1, 1e1), low=1e-6)
        probability: float = hparam(1.0, choice(0.5, 1.0), low=0.0, high=1.0)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require images, with one loss per example."""
        if len(problem.input_shape) != 3:
            return "it cuts rectangles out of images"
        return super().skip(problem)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """A probability of 0, which is ERM."""
        return {"probability": 0.0}

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Each image's partner, (E B,), and the rectangle's first and past-the-end pixel, (2, 2)."""
        order = torch.randperm(batch.x.shape[:2].numel(), generator=generator)
        rest = 1 - beta(self.hparams.alpha, (1,), generator)
        at, chance = torch.rand(2, generator=generator), torch.rand(1, generator=generator)
        sides = torch.tensor(batch.x.shape[-2:])
        half = (sides * rest.sqrt()).long() // 2 * (chance < self.hparams.probability)
        centre = (at * sides).long()
        corners = torch.stack([(centre - half).clamp(min=0), torch.minimum(centre + half, sides)])
        return {"order": order, "corners": corners}

    def prepare(self, batch: Batch) -> Batch:
        """Fill a rectangle of every image from its partner."""
        shape = batch.x.shape[:2]
        x, y = (values.flatten(0, 1)[batch.noise["order"]] for values in (batch.x, batch.y))
        first, last = batch.noise["corners"]
        inside = [
            (place >= first[i]) & (place < last[i])
            for i, place in enumerate(torch.arange(n, device=x.device) for n in x.shape[-2:])
        ]
        cut = inside[0].unsqueeze(1) & inside[1]
        share = 1 - cut.to(x.dtype).mean()
        mixed = torch.where(cut, torch.unflatten(x, 0, shape), batch.x)
        return replace(
            batch, x=mixed, other_y=torch.unflatten(y, 0, shape), share=share.expand(shape)
        )
