"""Meta-learning for domain generalization."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, register
from oodbench.hparams import hparam, log_uniform
from oodbench.optimizers import set_rates

from .perturbed import excursion, gradients, trained


@register("MLDG", paper="arXiv:1710.03463")
class MLDG(Algorithm):
    """The risks, plus each environment's risk after a step on the risk of another environment.

    Each step puts the environments in a ring of random order. For every pair (i, j) of neighbours theta' is
    theta after a step on R_i, and the gradient is mean_i (grad R_i(theta) + beta grad R_j(theta')): the
    paper's F(theta) + beta G(theta - alpha F') without second order, with one meta-train and one meta-test
    environment at a time, as in the code behind arXiv:2007.01434's table (their later code splits the
    environments once, and with two environments trains nothing).

    The inner step is the first one of a new optimizer of the run's kind, weight decay included: with `sgd`
    the paper's plain step of size alpha = lr, with `adam` about lr * sign(gradient), as in the table. Batch
    normalisation keeps the statistics of the passes at theta; dropout draws again in each.
    """

    changes = "step"
    noise_on_host = True
    needs = Needs(environments=2)  # a pair has two members

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434, D.2."""

        beta: float = hparam(1.0, log_uniform(1e-1, 1e1), low=0.0)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out the risks after a step, which is ERM."""
        return {"beta": 0.0}

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The order of the ring, (E,)."""
        return {"order": torch.randperm(len(batch.x), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Two passes per pair; `loss` is the mean risk at theta."""
        parameters = trained(self.network)
        state = [*parameters, *self.network.buffers()]
        inner = self.optimizer_of(parameters)
        set_rates(inner, self.rates(step))
        order = batch.noise["order"].tolist()
        total, risks = [torch.zeros_like(p) for p in parameters], []
        for i, j in zip(order, order[1:] + order[:1], strict=True):
            risk = self.outputs(batch.of([i]), step).risks.mean()
            first = gradients(risk, parameters)
            with excursion(state):
                inner.state.clear()
                for p, gradient in zip(parameters, first, strict=True):
                    p.grad = gradient
                inner.step()
                second = gradients(self.outputs(batch.of([j]), step).risks.mean(), parameters)
            torch._foreach_add_(first, second, alpha=self.hparams.beta)
            torch._foreach_add_(total, first)
            risks.append(risk.detach())
        self.descend([gradient / len(order) for gradient in total], step)
        return {"loss": torch.stack(risks).mean()}
