"""A stranger's MLDG: a whole step of its own, with a gradient at other weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Problem, register
from oodbench.hparams import hparam, log_uniform


@register("StrangersMLDG", paper="arXiv:1710.03463")
class StrangersMLDG(Algorithm):
    """The risk of some environments, and that of another after a step on these, to first order."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The weight of the risk after the step."""

        beta: float = hparam(1.0, log_uniform(0.1, 10.0), low=0.0)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """One environment is left out of the inner step."""
        few = len(problem.environments) < 2
        return "it tests its step on another environment" if few else super().skip(problem)

    def draw(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The environments, the last of which is tested on."""
        return {"order": torch.randperm(len(batch.x), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """A step on the sum of both gradients."""
        batch = self.prepared(batch, step)
        *train, test = batch.draws["order"].tolist()
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        risk = self.outputs(batch.of(train), step).risks.mean()
        first = torch.autograd.grad(risk, parameters)
        lr = self.rates(step).lr
        with torch.no_grad():
            for p, gradient in zip(parameters, first, strict=True):
                p.sub_(lr * gradient)
        second = torch.autograd.grad(self.outputs(batch.of([test]), step).risks.mean(), parameters)
        for p, one, other in zip(parameters, first, second, strict=True):
            with torch.no_grad():
                p.add_(lr * one)
            p.grad = one + self.hparams.beta * other
        self.step_optimizer(self.optimizers["main"], step)
        return {"loss": risk.detach()}
