"""Principal gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, register
from oodbench.hparams import choice, hparam

from .perturbed import trained


def principal_gradient(path: Tensor, components: int) -> Tensor:
    """The principal direction (P,) of a path of weights (T, P), scaled to the distance of its ends.

    Let S be the centred weights, lambda_k and w_k the leading eigenvalues and eigenvectors of S S' (T x T),
    and v_k = S' w_k / ||S' w_k||, signed to point back to the path's start. The direction is sum_k lambda_k
    v_k / ||lambda|| times that distance. As ||S' w_k||^2 = lambda_k, the sum is S' sum_k +-sqrt(lambda_k)
    w_k.
    """
    products = path @ path.mT
    products = products - products.mean(0)
    products = products - products.mean(1, keepdim=True)
    eigen = torch.linalg.eigh(products)
    values = eigen.eigenvalues.flip(0)[:components].clamp(min=0)
    vectors = eigen.eigenvectors.flip(1)[:, :components]
    signs = torch.where((products[0] - products[-1]) @ vectors > 0, 1.0, -1.0)
    shares = vectors @ (signs * values.sqrt())
    length = (path[0] - path[-1]).norm() / values.norm().clamp(min=torch.finfo(path.dtype).tiny)
    along: Tensor = length * ((shares - shares.mean()) @ path)
    return along


@register("PGrad", paper="arXiv:2305.01134")
class PGrad(Algorithm):
    """A step along the principal directions of a walk over the environments.

    The walk takes a step of the run's optimizer on the risk of each environment in turn, in an order drawn
    for each of `splits` pieces of the batch (PGrad-B). The leading principal directions of its weights,
    signed to point back to its start, are summed in proportion to their eigenvalues and scaled to the
    distance of its ends (sections 3.1 and 3.2); theta <- theta - outer_lr times the result. The optimizer
    keeps its moments between walks. In the authors' code weight decay is part of the outer step; here it
    acts in the walk. Statistics of batch normalisation are those of the walk. If `splits` does not divide
    the batch, its unequal pieces come in another order there.
    """

    changes = "step"
    noise_on_host = True

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The authors' code."""

        splits: int = hparam(3, low=1)
        components: int = hparam(4, low=1)
        outer_lr: float = hparam(0.1, choice(0.05, 0.1, 0.5), low=0.0)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The orders of the walk, (splits, E)."""
        count = len(batch.x)
        orders = [torch.randperm(count, generator=generator) for _ in range(self.hparams.splits)]
        return {"orders": torch.stack(orders)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """One inner step per piece and environment; `loss` is the mean risk along the walk."""
        parameters, risks = trained(self.network), []
        start = torch.cat([p.detach().flatten() for p in parameters])
        path = start.new_zeros(1 + batch.noise["orders"].numel(), len(start))  # offset from start
        pieces = batch.micro_batches(self.hparams.splits)
        for piece, order in zip(pieces, batch.noise["orders"].tolist(), strict=False):
            for e in order:
                risk = self.outputs(piece.of([e]), step).risks.mean()
                self.descend(risk, step)
                risks.append(risk.detach())
                row = path[len(risks)]
                torch.cat([p.detach().flatten() for p in parameters], out=row).sub_(start)
        gradient = principal_gradient(path[: 1 + len(risks)], self.hparams.components)
        moved = start - self.hparams.outer_lr * gradient
        with torch.no_grad():
            parts = torch.split(moved, [p.numel() for p in parameters])
            for p, values in zip(parameters, parts, strict=True):
                p.copy_(values.view(p.shape))
        return {"loss": torch.stack(risks).mean()}
