"""IRM and V-REx for linear regression from second moments, many updates in one compiled loop."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oodbench.algorithms import Batch, Needs, Problem, register
from oodbench.errors import MissingError
from oodbench.hparams import choice, hparam, log_uniform
from oodbench.networks.base import Network

from .least_squares import LinearMethod

PACKAGES = {"numba": "pip install oodbench[linear]"}
Floats = npt.NDArray[np.float64]


class MomentMethod(LinearMethod):
    """Adam on r sum_e R_e + (1 - r) penalty, with r = `risk_weight`: the papers' linear studies.

    Every R_e is quadratic in the weights, so an update needs only the environments' second moments: a few
    products of D x D matrices. Each step of a run does `updates` full-batch updates, the same as `updates`
    steps of one each. A subclass implements `start`, the initial rows of `theta`, (K, D), whose sum is w,
    and `gradient`, which is compiled.
    """

    needs = Needs(packages=PACKAGES)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(LinearMethod.Hparams):
        """The grid and the learning rate of arXiv:1907.02893's code."""

        risk_weight: float = hparam(
            1e-3, choice(0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1), low=0.0, high=1.0
        )
        updates: int = hparam(1000, low=1)
        lr: float = hparam(1e-3, log_uniform(1e-4, 1e-2), low=0.0)
        optimizer: str = hparam("adam", options=("adam",))

    theta: Tensor
    moments: Tensor
    count: Tensor

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.register_buffer("theta", self.start(len(self.weights)).double())
        self.register_buffer("moments", torch.zeros(2, *self.theta.shape, dtype=torch.double))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.weights.copy_(self.theta.sum(0)[:, None])
        self._adam = compiled(type(self).gradient)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require one output, for which the quadratic form of the risk is written."""
        if problem.task.kind == "regression" and problem.task.num_outputs > 1:
            return "it is made for a single output"
        return super().skip(problem)

    @abstractmethod
    def start(self, dim: int) -> Tensor:
        """The parameters theta before the first update, (K, D)."""

    @staticmethod
    @abstractmethod
    def gradient(theta: Floats, a: Floats, b: Floats, c: Floats, risk_weight: float) -> Floats:
        """The gradient of the objective in theta, (K, D), given the quadratics."""

    def quadratics(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a, b, c of R_e = w'a_e w - 2 b_e'w + c_e, from inputs (E, B, D) and targets (E, B, 1)."""
        count = x.shape[1]
        return x.mT @ x / count, (x.mT @ y).squeeze(2) / count, y.square().mean((1, 2))

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        """The weights after `updates` more updates."""
        quadratics = [q.cpu().numpy() for q in self.quadratics(x, y)]
        theta, moments = self.theta.cpu().numpy(), self.moments.cpu().numpy()
        h = self.hparams
        self._adam(theta, moments, int(self.count), h.updates, h.lr, h.risk_weight, *quadratics)
        self.theta.copy_(torch.from_numpy(theta))
        self.moments.copy_(torch.from_numpy(moments))
        self.count += h.updates
        return self.theta.sum(0)[:, None]

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Do `updates` updates, also on the previous step's batch."""
        self._last = None
        return super().update(batch, step)


@lru_cache
def compiled(gradient: Any) -> Any:
    """Compile Adam's updates of theta (K, D) and its two moments (2, K, D) in place.

    They equal torch's Adam with its default betas and epsilon. Raises MissingError without numba.
    """
    try:
        import numba
    except ImportError:
        raise MissingError(
            f"LinearIRM and LinearVREx need numba: `{PACKAGES['numba']}`", PACKAGES["numba"]
        ) from None
    slope = numba.njit(gradient)

    def descend(
        theta: Floats,
        moments: Floats,
        done: int,
        updates: int,
        lr: float,
        risk_weight: float,
        a: Floats,
        b: Floats,
        c: Floats,
    ) -> None:
        first, second = moments[0], moments[1]
        for t in range(done + 1, done + updates + 1):
            g = slope(theta, a, b, c, risk_weight)
            first += 0.1 * (g - first)
            second += 0.001 * (g * g - second)
            scale = np.sqrt(second / (1 - 0.999**t)) + 1e-8
            theta -= lr / (1 - 0.9**t) * first / scale

    return numba.njit(descend)


@register("LinearIRM", paper="arXiv:1907.02893")
class LinearIRM(MomentMethod):
    """IRM with a gradient penalty in all weights of a linear classifier on a linear representation.

    The linear study of Arjovsky et al. (section 5.1, their code): predictions x phi w with phi (D, D)
    learned, starting at the identity, and w = (1, ..., 1) fixed; the penalty is sum_e mean_j (dR_e/dw_j)^2.
    theta is phi transposed.
    """

    def start(self, dim: int) -> Tensor:
        """Start theta as the identity, (D, D)."""
        return torch.eye(dim)

    @staticmethod
    def gradient(theta: Floats, a: Floats, b: Floats, c: Floats, risk_weight: float) -> Floats:
        """The gradient, derived by hand from dR_e/dw_j = 2 theta_j (A_e sum_i theta_i - b_e)."""
        rows = len(theta)
        weights = theta.sum(0)
        gradient = np.zeros_like(theta)
        for e in range(len(a)):
            half = a[e] @ weights - b[e]
            slopes = 2 * (theta @ half)
            shared = 2 * risk_weight * half
            shared += (1 - risk_weight) * 4 / rows * (a[e] @ (slopes @ theta))
            for j in range(rows):
                gradient[j] += shared + (1 - risk_weight) * 4 / rows * slopes[j] * half
        return gradient


@register("LinearVREx", paper="arXiv:2003.00688")
class LinearVREx(MomentMethod):
    """V-REx on the weights of a linear regression: the penalty is the sum over pairs of (R_i - R_j)^2.

    The linear study of Krueger et al. (appendix, their code): learned weights, starting at (1, ..., 1).
    `baseline` is subtracted from each environment's risk to account for the target's noise: nothing, Var(Y)
    (`target`, the paper's text), or Var(Y) + Var(prediction) (`both`, its code), with unbiased variances.
    """

    needs = Needs(environments=2, packages=PACKAGES)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(MomentMethod.Hparams):
        """The baselines that are subtracted from the risks."""

        baseline: str = hparam("none", options=("none", "target", "both"))

    def start(self, dim: int) -> Tensor:
        """Start theta as ones, (1, D)."""
        return torch.ones(1, dim)

    def quadratics(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The quadratics of the risks minus their baselines."""
        a, b, c = super().quadratics(x, y)
        if self.hparams.baseline != "none":
            c = c - y.var((1, 2))
        if self.hparams.baseline == "both":
            centred = x - x.mean(1, keepdim=True)
            a = a - centred.mT @ centred / (x.shape[1] - 1)
        return a, b, c

    @staticmethod
    def gradient(theta: Floats, a: Floats, b: Floats, c: Floats, risk_weight: float) -> Floats:
        """r sum_e grad R_e + (1 - r) 2 E sum_e (R_e - mean) grad R_e."""
        weights = theta[0]
        count = len(a)
        risks = np.empty(count)
        slopes = np.empty((count, len(weights)))
        for e in range(count):
            image = a[e] @ weights
            risks[e] = weights @ (image - 2 * b[e]) + c[e]
            slopes[e] = 2 * (image - b[e])
        shares = risk_weight + (1 - risk_weight) * 2 * count * (risks - risks.mean())
        gradient = np.empty_like(theta)
        gradient[0] = shares @ slopes
        return gradient
