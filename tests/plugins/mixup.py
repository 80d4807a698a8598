"""A stranger's Mixup: a batch made of the batch, with two-part targets."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, beta, register
from oodbench.hparams import hparam, log_uniform


@register("StrangersMixup", paper="arXiv:1710.09412")
class StrangersMixup(Algorithm):
    """Every example is mixed with one of the next environment."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The distribution of the shares."""

        alpha: float = hparam(0.2, log_uniform(0.1, 10.0), low=1e-6)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """A share for each example."""
        return {"share": beta(self.hparams.alpha, tuple(batch.x.shape[:2]), generator)}

    def prepare(self, batch: Batch) -> Batch:
        """The mixed batch."""
        share = batch.noise["share"].to(batch.x.dtype)
        m = share.view(*share.shape, *[1] * (batch.x.ndim - 2))
        x = m * batch.x + (1 - m) * batch.x.roll(1, 0)
        return replace(batch, x=x, other_y=batch.y.roll(1, 0), share=share)
