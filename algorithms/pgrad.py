"""Principal gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, register
from oodbench.hparams import choice, hparam

from .perturbed import trained


def principal_gradient(path: Tensor, components: int) -> Tensor:
    """The direction (P,) from the weights (T, P) along a path, of the length of its way.

    With w_k the first eigenvectors of the T x T matrix of the centred weights, v_k = S' w_k made unit, and
    signs with which they go back to the path's start, sum_k lambda_k v_k / ||lambda|| times the way. As
    ||S' w_k||^2 = lambda_k, that is S' sum_k +-sqrt(lambda_k) w_k, and S itself is never needed.
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
    for each of `splits` pieces of the batch (PGrad-B). Its weights' first principal directions, each
    turned to where the walk came from, are summed with their eigenvalues' shares and given the length of
    its way (sections 3.1 and 3.2); theta <- theta - outer_lr times that. The optimizer's moments go on from
    walk to walk. In the authors' code weight decay is that of the outer step; here it acts in the walk.
    Statistics of batch normalisation are those of the walk. Two lengths of a batch that `splits` does
    not divide come in another order there.
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
        """An inner step for every piece of every environment; `loss` is the mean along the way."""
        parameters, risks = trained(self.network), []
        start = torch.cat([p.detach().flatten() for p in parameters])
        path = start.new_zeros(1 + batch.noise["orders"].numel(), len(start))  # of what has moved
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
