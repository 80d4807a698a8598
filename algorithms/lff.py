"""Learning from failure."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import hparam, uniform
from oodbench.networks.base import Network


@register("LfF", paper="arXiv:2007.02561")
class LfF(Algorithm):
    """The mean loss, with larger weights for examples that are hard for a second, biased network.

    The biased network b minimises the mean of (1 - p^q) / q, with p the probability of the example's class
    (eq. 1), which favours easy examples; the debiased network d minimises the mean of W l_d with W = l_b /
    (l_b + l_d + 1e-8) (eq. 2). As in the authors' code, the losses in W are running means of each example,
    with decay `ema`, divided by the largest in its class. Their code also multiplies b's loss by q, which
    makes no difference to Adam. Predictions are those of d. Both networks start from the run's initial
    weights; in the authors' code they are initialised separately.
    """

    changes = "group"
    needs = Needs(index=True, classes=True)
    biased: Tensor
    debiased: Tensor
    label: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults: the paper; the range of q: SubpopBench (arXiv:2302.12254)."""

        q: float = hparam(0.7, uniform(0.05, 0.95), low=1e-6)
        ema: float = hparam(0.7, low=0.0, high=0.99)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        self.biased_network = copy.deepcopy(network)
        shape = len(problem.sizes), max(problem.sizes)
        self.register_buffer("biased", torch.zeros(shape))
        self.register_buffer("debiased", torch.zeros(shape))
        self.register_buffer("label", torch.full(shape, -1))

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """Running losses (E, N) of both networks, b's with gradient, and the examples' classes."""
        with self.precision(out.batch.x):
            logits = self.biased_network(out.batch.x.flatten(0, 1))
        logits = torch.unflatten(logits.to(out.losses.dtype), 0, out.targets.shape)
        losses = {"biased": out.task.losses(logits, out.targets), "debiased": out.losses.detach()}
        kept = self._kept(out)
        means = {n: kept * self._of(out, n) + (1 - kept) * value for n, value in losses.items()}
        known = {**means, "label": out.targets.long()}
        return {name: self._with(out, name, value) for name, value in known.items()}

    def _of(self, out: Outputs, name: str) -> Tensor:
        """A buffer's values (E, B) for the step's examples, before the step."""
        assert out.batch.index is not None
        return out.of_step(self.get_buffer(name)).gather(1, out.batch.index)

    def _with(self, out: Outputs, name: str, values: Tensor) -> Tensor:
        """A buffer in which the step's examples have new values (E, B)."""
        assert out.batch.index is not None
        buffer = self.get_buffer(name)
        updated = out.of_step(buffer).scatter(1, out.batch.index, values)
        return out.over_environments(updated, buffer)

    def _kept(self, out: Outputs) -> Tensor:
        """The decay of each example's running mean, (E, B): 0 at its first occurrence."""
        return self.hparams.ema * (self._of(out, "label") >= 0).to(self.biased.dtype)

    def objective(self, out: Outputs) -> Tensor:
        """The biased network's mean loss plus the weighted mean loss."""
        assert out.batch.index is not None
        y, label = out.targets.long(), out.buffers["label"]
        classes = torch.arange(self.problem.task.classes, device=y.device)
        of_class = label.flatten() == classes.unsqueeze(1)
        mean, relative = {}, {}
        for name in ("biased", "debiased"):
            every = out.buffers[name]
            largest = torch.where(of_class, every.detach().flatten(), 0.0).amax(1)
            mean[name] = out.of_step(every).gather(1, out.batch.index)
            relative[name] = mean[name].detach() / largest[y]
        weights = relative["biased"] / (relative["biased"] + relative["debiased"] + 1e-8)
        out.metrics["weight"] = weights.mean()
        kept = self._kept(out)
        biased = (mean["biased"] - kept * self._of(out, "biased")) / (1 - kept)  # this step's l_b
        easy = -torch.expm1(-self.hparams.q * biased) / self.hparams.q
        return easy.mean() + (weights * out.losses).mean()
