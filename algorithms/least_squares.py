"""Linear predictors that are fitted rather than trained, and pooled least squares."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Problem, register
from oodbench.hparams import hparam
from oodbench.networks.base import Network


class LinearMethod(Algorithm, ABC):
    """A linear predictor that is fitted; the run's network is not trained.

    A subclass implements `fit`. Hyperparameters of networks and optimizers have no effect unless the
    subclass says so. `weights` are (D, C), for D inputs and C outputs. With `intercept`, inputs and targets
    are centred by their means over all environments before the fit; the linear studies of the papers have
    no intercept.
    """

    changes = "estimator"
    trains_network = False

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """A fit sees all examples (of environments of one size) at once."""

        batch_size: int = hparam(0, low=0)
        intercept: bool = hparam(True, by_family={"linear": (False, None)}, neutral=False)

    weights: Tensor
    bias: Tensor

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        shape = (math.prod(problem.input_shape), problem.task.num_outputs)
        self.register_buffer("weights", torch.zeros(shape, dtype=torch.double))
        self.register_buffer("bias", torch.zeros(shape[1], dtype=torch.double))
        self._last: tuple[Batch, Tensor] | None = None

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require a regression, as a fit minimises squared errors."""
        if problem.task.kind != "regression":
            return f"it fits real targets, and the task is {problem.task.kind}"
        return super().skip(problem)

    @abstractmethod
    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        """The weights (D, C) from inputs (E, B, D) and targets (E, B, C) in double precision."""

    @torch.no_grad()
    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Fit the batch, unless it is the previous step's; `loss` is the mean squared error after it."""
        if self._last is None or self._last[0] is not batch:
            x, y = batch.x.flatten(2).double(), batch.y.double()
            means = x.mean((0, 1)), y.mean((0, 1))
            if self.hparams.intercept:
                x, y = x - means[0], y - means[1]
            self.weights.copy_(self.fit(x, y))
            if self.hparams.intercept:
                self.bias.copy_(means[1] - means[0] @ self.weights)
            self._last = batch, (x @ self.weights.double() - y).square().mean()
        return {"loss": self._last[1]}

    def predict(self, x: Tensor) -> Tensor:
        """Predictions (N, C) of inputs (N, *input_shape)."""
        outputs = x.flatten(1) @ self.weights.to(x.dtype)
        return outputs + self.bias.to(x.dtype) if self.hparams.intercept else outputs


@register("LeastSquares", paper="Legendre, Nouvelles methodes (1805)")
class LeastSquares(LinearMethod):
    """The limit of ERM in a linear regression: least squares on the pooled training environments.

    w = argmin sum_ei ||y_ei - w x_ei||^2. A run needs one step.
    """

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        """argmin_w ||X w - Y||^2, of minimal norm if there are several."""
        x, y = x.flatten(0, 1), y.flatten(0, 1)
        solution: Tensor = torch.linalg.pinv(x) @ y
        return solution
