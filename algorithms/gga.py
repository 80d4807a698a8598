"""Gradient-guided annealing."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, first_step, register
from oodbench.hparams import choice, hparam

from .perturbed import excursion, trained

TOLERANCE = 0.1
"""The most by which the loss of better weights may exceed the loss of the best weights so far."""


@register("GGA", paper="arXiv:2502.20162")
class GGA(Algorithm):
    """ERM, whose early steps start from nearby weights at which the environments' gradients agree more.

    From step `start` to `end` (below 1: shares of the run's steps), every update is preceded by a random
    walk of the featurizer, with noise uniform on [-radius, radius]. Weights become the best so far if the
    smallest cosine between two environments' gradients grows and the loss is less than 0.1 above that of
    the previous best; the walk then restarts from the step's initial weights. After `search` trials ERM's
    update is done at the best weights. The walk follows the authors' code, where 100 of 5,000 steps have
    250 trials each; all other steps cost what ERM's do. Each environment's gradient uses its own statistics
    of batch normalisation, and the walk leaves the running ones as they are.
    """

    changes = "step"
    noise_on_host = True
    needs = Needs(environments=2, outputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The authors' settings, and for `radius` those of their datasets."""

        start: int | float = hparam(0.02, low=0)
        end: int | float = hparam(0.04, low=0)
        search: int = hparam(250, low=0)
        radius: float = hparam(1e-5, choice(1e-6, 1e-5, 1e-4), low=0.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out the search, which is ERM."""
        return {"search": 0}

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The seed of the walk's noise, ()."""
        return {"seed": torch.randint(2**62, (), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Search in the steps from `start` to `end`, then update as ERM."""
        first, last = (
            first_step(getattr(self.hparams, n), self.problem.steps) for n in ("start", "end")
        )
        walks = self.hparams.search and trained(self.network.featurizer)  # a `Head` has no features
        if first <= step <= last and walks:
            with excursion([*self.network.buffers()]):
                self._search(batch, step)
        return super().update(batch, step)

    @torch.no_grad()
    def _search(self, batch: Batch, step: int) -> None:
        generator = torch.Generator().manual_seed(int(batch.noise["seed"]))
        moved: list[Tensor] = [*trained(self.network.featurizer)]
        start = [p.clone() for p in moved]
        best, (agreement, loss) = start, self._agreement(batch, step)
        for _ in range(self.hparams.search):
            for p in moved:
                uniform = 2 * torch.rand(p.shape, generator=generator) - 1
                p.add_(uniform.to(p), alpha=self.hparams.radius)
            now, loss_now = self._agreement(batch, step)
            if now > agreement and loss_now < loss + TOLERANCE:
                agreement, loss, best = now, loss_now, [p.clone() for p in moved]
                torch._foreach_copy_(moved, start)
        torch._foreach_copy_(moved, best)

    def _agreement(self, batch: Batch, step: int) -> tuple[float, float]:
        """The smallest cosine between two environments' gradients, and the mean risk."""
        out = self.outputs(batch, step)
        flat = torch.cat([g.flatten(1) for g in self.risk_gradients(out).values()], 1)
        unit = F.normalize(flat, dim=1)
        cosines = unit @ unit.mT + 2 * torch.eye(len(unit), dtype=unit.dtype, device=unit.device)
        return float(cosines.min()), float(out.risks.mean())
