"""A stranger's Fish: several steps of an optimizer in one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Batch, register
from oodbench.hparams import choice, hparam
from oodbench.steps import CustomStep, descend, outputs, prepared


@register("StrangersFish", paper="arXiv:2104.09937")
class StrangersFish(CustomStep):
    """A part of the way of a walk over the environments in a random order."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(CustomStep.Hparams):
        """The part of the way."""

        meta_lr: float = hparam(0.5, choice(0.05, 0.1, 0.5), low=0.0, high=1.0)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The order of the walk."""
        return {"order": torch.randperm(len(batch.x), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The walk, and the way back."""
        batch = prepared(self, batch, step, on_host=True)
        start = [p.detach().clone() for p in self.network.parameters()]
        total = torch.zeros((), device=batch.x.device)
        for e in batch.noise["order"].tolist():
            self.zero_grad()
            risk = outputs(self, batch.of([e]), step).risks.mean()
            risk.backward()  # type: ignore[no-untyped-call]
            descend(self, step)
            total = total + risk.detach() / len(batch.x)
        with torch.no_grad():
            for p, before in zip(self.network.parameters(), start, strict=True):
                p.copy_(torch.lerp(before, p, self.hparams.meta_lr))
        return {"loss": total}
