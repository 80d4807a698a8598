"""A stranger's Fish: several steps of an optimizer in one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, register
from oodbench.hparams import choice, hparam


@register("StrangersFish", paper="arXiv:2104.09937")
class StrangersFish(Algorithm):
    """A part of the way of a walk over the environments in a random order."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The part of the way."""

        meta_lr: float = hparam(0.5, choice(0.05, 0.1, 0.5), low=0.0, high=1.0)

    def draw(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The order of the walk."""
        return {"order": torch.randperm(len(batch.x), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The walk, and the way back."""
        batch = self.prepared(batch, step)
        start = [p.detach().clone() for p in self.network.parameters()]
        total = torch.zeros((), device=batch.x.device)
        for e in batch.draws["order"].tolist():
            self.optimizers["main"].zero_grad()
            risk = self.outputs(batch.of([e]), step).risks.mean()
            risk.backward()  # type: ignore[no-untyped-call]
            self.step_optimizer(self.optimizers["main"], step)
            total = total + risk.detach() / len(batch.x)
        with torch.no_grad():
            for p, before in zip(self.network.parameters(), start, strict=True):
                p.copy_(torch.lerp(before, p, self.hparams.meta_lr))
        return {"loss": total}
