"""A stranger's MLDG: a whole step of its own, with a gradient at other weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Batch, Needs, register
from oodbench.hparams import hparam, log_uniform
from oodbench.steps import CustomStep, descend, outputs, prepared, rates


@register("StrangersMLDG", paper="arXiv:1710.03463")
class StrangersMLDG(CustomStep):
    """The risk of some environments, and that of another after a step on these, to first order."""

    needs = Needs(environments=2)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(CustomStep.Hparams):
        """The weight of the risk after the step."""

        beta: float = hparam(1.0, log_uniform(0.1, 10.0), low=0.0)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The environments, the last of which is tested on."""
        return {"order": torch.randperm(len(batch.x), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """A step on the sum of both gradients."""
        batch = prepared(self, batch, step)
        *train, test = batch.noise["order"].tolist()
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        risk = outputs(self, batch.of(train), step).risks.mean()
        first = torch.autograd.grad(risk, parameters)
        lr = rates(self, step).lr
        with torch.no_grad():
            for p, gradient in zip(parameters, first, strict=True):
                p.sub_(lr * gradient)
        second = torch.autograd.grad(outputs(self, batch.of([test]), step).risks.mean(), parameters)
        for p, one, other in zip(parameters, first, second, strict=True):
            with torch.no_grad():
                p.add_(lr * one)
            p.grad = one + self.hparams.beta * other
        descend(self, step)
        return {"loss": risk.detach()}
