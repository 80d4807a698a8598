"""Gradient agreement filtering."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Problem, register
from oodbench.errors import UserError
from oodbench.hparams import choice, hparam

from .perturbed import trained


@register("GAF", paper="arXiv:2412.18052")
class GAF(Algorithm):
    """The gradients of micro-batches, without those that point away from the earlier ones.

    With g the first micro-batch's gradient, each next gradient g_i is taken in turn: if its cosine distance
    1 - cos(g, g_i) is at most `threshold`, g becomes (g + g_i) / 2, else g_i is left out. If every g_i is
    left out, the step does no update. So the last of M gradients that agree has weight 1/2, and the first
    two have 2^(1 - M), as in the authors' code; with `equal_weights` g is the mean of all gradients that
    agree. A threshold of 2 leaves none out, and with two micro-batches that is ERM.

    A micro-batch has an equal share of every environment's examples, and each has its own statistics of
    batch normalisation. Runs record the share of the gradients g_i that agreed and their mean distance.
    """

    changes = "gradient"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The threshold of the authors' commands, and the values of their search."""

        threshold: float = hparam(
            0.97, choice(0.95, 0.97, 0.99, 1.0, 1.01, 1.05, 2.0), low=0.0, high=2.0
        )
        micro_batches: int = hparam(2, choice(2, 4, 10), low=0)
        """The number of micro-batches in a step's batch; 0: each environment is one."""
        equal_weights: bool = hparam(False)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """Two micro-batches, both kept; None if missing labels would change the mean of a micro-batch."""
        missing = problem.task.kind == "multilabel"
        return None if missing else {"threshold": 2.0, "micro_batches": 2}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Filter the micro-batches' gradients, and descend unless the first agrees with none."""
        pieces = self._micro_batches(batch)
        risks, gradients = zip(*(self._gradient(piece, step) for piece in pieces), strict=True)
        kept, agreed, distances = gradients[0], torch.zeros_like(risks[0]), []
        for gradient in gradients[1:]:
            distances.append(1 - F.cosine_similarity(kept, gradient, dim=0))
            agrees = distances[-1] <= self.hparams.threshold
            agreed = agreed + agrees
            weight = 1 / (1 + agreed) if self.hparams.equal_weights else 0.5
            kept = torch.where(agrees, kept.lerp(gradient, weight), kept)
        if agreed > 0:
            parameters = [*trained(self.network)]
            parts = kept.split([p.numel() for p in parameters])
            self.descend([g.view_as(p) for g, p in zip(parts, parameters, strict=True)], step)
        metrics = {"agreed": agreed / len(distances), "distance": torch.stack(distances).mean()}
        return {"loss": torch.stack(risks).mean(), **metrics}

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        if count := self.hparams.micro_batches:
            pieces = batch.micro_batches(count)
        else:
            pieces = [batch.of([e]) for e in range(len(batch.x))]
        if len(pieces) < 2:
            raise UserError(
                "GAF: a step needs at least two micro-batches: set 'micro_batches' to 2 or more and "
                "'batch_size' to as much"
            )
        return pieces

    def _gradient(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """The risk of a micro-batch and its gradient (P,)."""
        risk = self.outputs(batch, step).risks.mean()
        options: Any = {"allow_unused": True, "materialize_grads": True}
        gradients = torch.autograd.grad(risk, [*trained(self.network)], **options)
        return risk.detach(), torch.cat([g.flatten() for g in gradients])
