"""Selective augmentation by mixing."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodbench.algorithms import BALANCED, Algorithm, Batch, Needs, Problem, beta, register
from oodbench.hparams import hparam, log_uniform, uniform


@register("LISA", paper="arXiv:2201.00299")
class LISA(Algorithm):
    """The mean risk of examples mixed with others of the same label or the same domain, but not both.

    With probability `same_label` a step mixes every example with one of the same label and another domain,
    otherwise with one of the same domain and another label (algorithm 1): m x + (1 - m) x' has the loss m
    l(y) + (1 - m) l(y'), m ~ Beta(alpha, alpha) for each example (eq. 1). A domain is an environment or, as
    in the paper's subpopulation shifts, an attribute. The partner is drawn uniformly from the batch; an
    example without a partner is unchanged.

    `domains: attributes` requires batches with equally likely groups (`sampling: rwg`), as the paper's code
    draws equally many examples of each group and pairs them off. With four groups 98.7% of the examples
    then have a partner in batches of 16, and 99.99% in batches of 32. For domain shifts its code has
    `same_label` 1, and partners from all training examples of the label, including the same domain.
    Deviation: only inputs are mixed; the paper uses CutMix on CelebA and on WILDS' images, and mixes
    features of text.
    """

    changes = "batch"
    needs = Needs(attributes={"domains": "attributes"}, classes=True, real_inputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults: the paper's code for subpopulations."""

        alpha: float = hparam(2.0, log_uniform(1e-1, 1e1), low=1e-6)
        same_label: float = hparam(0.5, uniform(0.0, 1.0), low=0.0, high=1.0)
        """The paper's p_sel."""
        domains: str = hparam("environments", options=("environments", "attributes"))

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require classes, and inputs that can be averaged."""
        by_attribute = problem.attributes and problem.hparams.get("domains") == "attributes"
        if by_attribute and BALANCED.get(problem.hparams["sampling"]) != "groups":
            return "`domains: attributes` mixes groups that are drawn equally often: add `sampling: rwg`"
        return super().skip(problem)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """`same_label` (), the partners' quantiles among the candidates (E B,), and shares (E, B)."""
        shape = batch.x.shape[:2]
        same_label = torch.rand((), generator=generator) < self.hparams.same_label
        place = torch.rand(shape.numel(), generator=generator, dtype=torch.float64)
        share = beta(self.hparams.alpha, shape, generator)
        return {"same_label": same_label, "place": place, "share": share}

    def prepare(self, batch: Batch) -> Batch:
        """Every example mixed with its partner."""
        shape, noise = batch.x.shape[:2], batch.noise
        domains, domain = len(self.problem.environments), batch.attributes
        if self.hparams.domains == "attributes":
            domains = self.problem.attributes
        else:
            every = torch.arange(shape[0], device=batch.x.device)
            domain = every if batch.environments is None else batch.environments
            domain = domain.unsqueeze(1).expand(shape)
        assert domain is not None
        y, domain = batch.y.flatten().long(), domain.flatten()
        sizes = self.problem.task.classes, domains
        of_label = partners(y, domain, sizes, noise["place"])
        of_domain = partners(domain, y, sizes[::-1], noise["place"])
        partner = torch.where(noise["same_label"], of_label, of_domain)
        share = noise["share"].to(batch.x.dtype)
        m = share.view(*shape, *[1] * (batch.x.ndim - 2))
        x, other = (torch.unflatten(v.flatten(0, 1)[partner], 0, shape) for v in (batch.x, batch.y))
        return replace(batch, x=torch.lerp(x, batch.x, m), other_y=other, share=share)


def partners(same: Tensor, other: Tensor, sizes: tuple[int, int], place: Tensor) -> Tensor:
    """The index (N,) of a partner of each example, with equal `same` and different `other`.

    `same` and `other` (N,) are integers below `sizes`. `place` (N,) in [0, 1) is the partner's quantile
    among the candidates; an example without candidates is its own partner.
    """
    key = same * sizes[1] + other
    order = key.argsort(stable=True)  # sorts by `same`, then by `other`
    keys = torch.arange(sizes[0] * sizes[1], device=key.device)
    count = (key.unsqueeze(1) == keys).sum(0)
    start, block = (count.cumsum(0) - count)[key], count[key]
    of_same = count.view(sizes).sum(1)
    first, possible = (of_same.cumsum(0) - of_same)[same], of_same[same] - block
    chosen = first + (place * possible).long()
    chosen = chosen + block * (chosen >= start)  # skip the block of the example's own key
    partner = order[chosen.clamp(max=len(key) - 1)]
    return torch.where(possible > 0, partner, torch.arange(len(key), device=key.device))
