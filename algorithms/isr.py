"""Invariant-feature subspace recovery: a linear predictor without the directions that differ."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, Problem
from oodbench.hparams import choice, hparam, log_uniform
from oodbench.networks.base import Network


class ISR(Algorithm):
    """Logistic regression on features of a fixed network, without its spurious directions.

    A subclass finds the d_s orthonormal directions in which environments differ; the features are projected
    onto the complement, and the predictor minimises sum_ei l(w z_ei + b, y_ei) + l2 / 2 ||w||^2. The
    featurizer is not trained: a `Head` passes the inputs on, and deep features come from given weights, as
    in the paper's use on trained networks. A fit sees one batch, by default all examples (if environments
    have the same size); a run needs one step.
    """

    changes = "estimator"
    needs = Needs(environments=2, classes=True)
    trains_network = False
    weights: Tensor
    bias: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """`l2` is scikit-learn's 1 / C, whose default the authors' code has."""

        spurious: int = hparam(0, choice(0, 1, 2, 5), low=0)
        """The number of directions left out; 0: the number of environments minus 1."""
        l2: float = hparam(1.0, log_uniform(1e-2, 1e2), low=0.0)
        batch_size: int = hparam(0, low=0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        outputs = problem.task.num_outputs
        shape = (network.num_features, outputs)
        self.register_buffer("weights", torch.zeros(shape, dtype=torch.double))
        self.register_buffer("bias", torch.zeros(outputs, dtype=torch.double))
        self._last: tuple[Batch, Tensor] | None = None

    @abstractmethod
    def directions(self, of_class: list[list[Tensor]], count: int) -> Tensor:
        """Up to `count` orthonormal directions (F, K), from features (n, F) by class and environment."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Fit the batch, unless it is the previous step's; `loss` is the mean loss after the fit."""
        if self._last is None or self._last[0] is not batch:
            self.network.eval()
            with torch.no_grad():
                z = self.featurized(batch.x.flatten(0, 1)).double().view(*batch.y.shape, -1)
                count = self.hparams.spurious or len(z) - 1
                classes = range(max(2, self.problem.task.num_outputs))
                groups = [[f[t == c] for f, t in zip(z, batch.y, strict=True)] for c in classes]
                v = self.directions(groups, min(count, z.shape[2]))
                kept = z - z @ v @ v.mT
            y = batch.y.double() if batch.y.is_floating_point() else batch.y
            self._last = batch, self._fit(kept.flatten(0, 1), y.flatten())
        return {"loss": self._last[1]}

    def _fit(self, z: Tensor, y: Tensor) -> Tensor:
        """Set weights and bias to the regression's minimum; return the mean loss."""
        theta = z.new_zeros(z.shape[1] + 1, self.bias.numel()).requires_grad_()

        def risk() -> Tensor:
            return self.problem.task.losses(z @ theta[:-1] + theta[-1], y).mean()

        solver = torch.optim.LBFGS(
            [theta],
            max_iter=1000,
            tolerance_grad=1e-15,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            solver.zero_grad()
            value = risk() + self.hparams.l2 / (2 * len(z)) * theta[:-1].square().sum()
            torch.autograd.backward(value)
            return value

        solver.step(closure)  # type: ignore[no-untyped-call]
        self.weights.copy_(theta[:-1].detach())
        self.bias.copy_(theta[-1].detach())
        return risk().detach()

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape)."""
        z = self.network.featurizer(x)
        logits: Tensor = z @ self.weights.to(z.dtype) + self.bias.to(z.dtype)
        return logits
