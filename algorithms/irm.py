"""Invariant risk minimization, the practical version IRMv1."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oodbench.algorithms import Needs, Outputs, register, to_device
from oodbench.errors import UserError
from oodbench.hparams import hparam, log_uniform
from oodbench.seeds import derive

from .penalized import Penalized


@register("IRM", paper="arXiv:1907.02893")
class IRM(Penalized):
    """Mean risk plus the squared gradient of each risk with respect to a scale of the classifier.

    IRMv1: mean_e [R_e + weight * (d/dw R_e(w * logits) at w = 1)^2]. The gradient is taken in closed form
    (`Task.scale_gradients`), so that a single backward pass is enough. `split_half` multiplies the
    gradients of two halves of the examples, drawn in each step, instead of squaring the gradient of all: an
    unbiased estimate, which can be negative (the code of arXiv:2007.01434 does so with the even and the odd
    examples of a batch). `shift` adds the squared gradient with respect to a constant added to the logits,
    as the code of arXiv:2102.10867 does: its (1 - l) mean R + l sum_e penalty_e is a `penalty_weight` of l
    E / (1 - l), and under Adam its weight decay is ours times 1 - l.
    """

    needs = Needs(outputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Penalized.Hparams):
        """Ranges: arXiv:2007.01434, D.2; for small images the search of the paper's code."""

        penalty_weight: float = hparam(
            100.0,
            log_uniform(1e-1, 1e5),
            low=0.0,
            by_family={
                "linear": (0.3, log_uniform(1e-3, 1e1)),
                "small_images": (1e4, log_uniform(1e2, 1e6)),
            },
        )
        split_half: bool = hparam(False)
        shift: bool = hparam(False, neutral=False)

    def penalty(self, out: Outputs) -> Tensor:
        """The mean over environments of the squared scale gradients."""
        gradients = out.task.scale_gradients(out.logits, out.targets)
        if self.hparams.split_half:
            if gradients.shape[1] < 2:
                raise UserError("IRM: 'split_half' needs at least two examples per environment")
            order = to_device(orders(out.step, *gradients.shape), gradients.device)
            shuffled = gradients.gather(1, order)
            return (shuffled[:, ::2].mean(1) * shuffled[:, 1::2].mean(1)).mean()
        penalty = gradients.mean(1).square().mean()
        if self.hparams.shift:
            shifts = out.task.logit_gradients(out.logits, out.targets).flatten(2).sum(2)
            penalty = penalty + shifts.mean(1).square().mean()
        return penalty


def orders(step: int, environments: int, examples: int) -> Tensor:
    """Random orders (E, B) of each environment's examples, seeded by the step alone, equal in all runs."""
    stream = np.random.default_rng(derive("split_half", step))
    numbers = np.tile(np.arange(examples), (environments, 1))
    return torch.from_numpy(stream.permuted(numbers, axis=1))
