"""Examples mixed with others, between environments or anywhere in a batch."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, beta, register
from oodbench.hparams import hparam, log_uniform


@register("Mixup", paper="arXiv:2001.00677")
class Mixup(Algorithm):
    """The mean risk of examples that are mixed, like their targets, with those of another environment.

    Each step puts the environments in a ring of random order; with one m ~ Beta(alpha, alpha) per pair of
    neighbours, m x + (1 - m) x' has the loss m l(y) + (1 - m) l(y') (arXiv:1710.09412, eq. 1; between
    environments as in arXiv:2007.01434's code).
    """

    changes = "batch"
    needs = Needs(feature_vector=True, real_inputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434, D.2."""

        alpha: float = hparam(0.2, log_uniform(1e-1, 1e1), low=1e-6)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The order of the environments in the ring, (E,), and the share m of each pair, (E,)."""
        count = len(batch.x)
        order = torch.randperm(count, generator=generator)
        return {"order": order, "share": beta(self.hparams.alpha, (count,), generator)}

    def prepare(self, batch: Batch) -> Batch:
        """Mix every environment's examples with its neighbour's."""
        order = batch.noise["order"]
        neighbour = order.roll(-1)
        share = batch.noise["share"].to(batch.x.dtype)
        m = share.view(-1, *[1] * (batch.x.ndim - 1))
        x = m * batch.x[order] + (1 - m) * batch.x[neighbour]
        shares = share.unsqueeze(1).expand(*batch.x.shape[:2])
        return replace(batch, x=x, y=batch.y[order], other_y=batch.y[neighbour], share=shares)


@register("OrgMixup", paper="arXiv:1710.09412")
class OrgMixup(Mixup):
    """The mean risk of examples that are mixed, like their targets, with any others of the step.

    The original mixup, on the examples of all environments together: with a random permutation p and one
    m ~ Beta(alpha, alpha) per step, as in its authors' code, m x_i + (1 - m) x_p(i) has the loss
    m l(y_i) + (1 - m) l(y_p(i)) (eq. 1).
    """

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Each example's partner, an index into all examples, (E B,), and the share m, (1,)."""
        order = torch.randperm(batch.x.shape[:2].numel(), generator=generator)
        return {"order": order, "share": beta(self.hparams.alpha, (1,), generator)}

    def prepare(self, batch: Batch) -> Batch:
        """Mix every example with its partner."""
        shape = batch.x.shape[:2]
        x, y = (values.flatten(0, 1)[batch.noise["order"]] for values in (batch.x, batch.y))
        share = batch.noise["share"].to(batch.x.dtype)
        mixed = torch.lerp(torch.unflatten(x, 0, shape), batch.x, share)
        return replace(
            batch, x=mixed, other_y=torch.unflatten(y, 0, shape), share=share.expand(shape)
        )
