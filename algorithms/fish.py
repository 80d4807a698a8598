"""Gradient matching by a walk over the environments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, register
from oodbench.hparams import choice, hparam


@register("Fish", paper="arXiv:2104.09937")
class Fish(Algorithm):
    """A share of the path that an optimizer takes in one step on each environment in turn.

    Algorithm 2: theta' starts at theta and takes a step on the risk of every environment, in an order drawn
    each time; then theta <- theta + meta_lr (theta' - theta). To first order that also follows the gradient
    of the inner products of the environments' gradients. The inner optimizer is the run's and keeps its
    moments between walks, as in arXiv:2007.01434's code, which has a fixed order. The paper's code divides
    meta_lr by the number of environments and starts from a network that ERM has trained. The running
    statistics of batch normalisation move with theta; dropout draws again in each pass.
    """

    needs = Needs(environments=2)
    changes = "step"
    noise_on_host = True

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and values: arXiv:2007.01434's code."""

        meta_lr: float = hparam(0.5, choice(0.05, 0.1, 0.5), low=0.0, high=1.0)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The order of the walk, (E,)."""
        return {"order": torch.randperm(len(batch.x), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One pass and inner step per environment; `loss` is the mean risk along the walk."""
        moving: list[Tensor] = [p for p in self.network.parameters() if p.requires_grad]
        moving += [b for b in self.network.buffers() if b.is_floating_point()]
        with torch.no_grad():
            before = [tensor.clone() for tensor in moving]
        risks = []
        for e in batch.noise["order"].tolist():
            risk = self.outputs(batch.of([e]), step).risks.mean()
            self.descend(risk, step)
            risks.append(risk.detach())
        with torch.no_grad():
            torch._foreach_lerp_(before, moving, self.hparams.meta_lr)
            torch._foreach_copy_(moving, before)
        return {"loss": torch.stack(risks).mean()}
