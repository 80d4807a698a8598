"""Invariant causal prediction."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from oodbench.algorithms import Needs, Problem, register
from oodbench.errors import UserError
from oodbench.hparams import hparam

from .least_squares import LinearMethod

MAX_INPUTS = 16
CHUNK = 1024
"""The number of subsets that are tested at once."""

Floats = npt.NDArray[np.float64]


@register("ICP", paper="arXiv:1501.01332")
class ICP(LinearMethod):
    """Least squares on the inputs in all subsets whose residuals are alike in all environments.

    Peters et al., method II, as in the code of arXiv:1907.02893: every non-empty subset of the inputs is
    fitted to the pooled environments. It is accepted if, for each of the E environments, the residuals are
    like those of the others in mean (Welch's t) and variance (F): the p-value 2 min(p_mean, p_variance)
    times E is above `alpha`. The inputs in all accepted subsets are refitted; the other inputs, or all if
    no subset is accepted, have the weight 0. D inputs take 2^D fits; a run needs one step.
    """

    needs = Needs(environments=2)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(LinearMethod.Hparams):
        """The level of the test."""

        alpha: float = hparam(0.05, low=0.0, high=1.0)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require one output, and few inputs, as all their subsets are searched."""
        if problem.task.kind == "regression" and problem.task.num_outputs > 1:
            return "the residuals of a single output are tested"
        if math.prod(problem.input_shape) > MAX_INPUTS:
            return (
                f"it goes through all subsets of the inputs, and takes at most {MAX_INPUTS} inputs"
            )
        return super().skip(problem)

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        """The refitted weights (D, 1)."""
        if x.shape[1] < 2:
            raise UserError("ICP needs at least two examples of every environment, for variances")
        inputs, targets = x.cpu().numpy(), y.squeeze(2).cpu().numpy()
        dim = inputs.shape[2]
        subsets = np.array(list(itertools.product((False, True), repeat=dim))[1:])
        accepted = np.concatenate(
            [
                p_values(inputs, targets, some) > self.hparams.alpha
                for some in np.array_split(subsets, math.ceil(len(subsets) / CHUNK))
            ]
        )
        shared = subsets[accepted].all(0) & accepted.any()
        weights = fits(inputs, targets, shared[None])
        return torch.from_numpy(weights).to(x)


def fits(x: Floats, y: Floats, subsets: npt.NDArray[np.bool_]) -> Floats:
    """Fit pooled least squares on each subset (S, D) of the inputs (E, B, D): weights (D, S)."""
    x, y = x.reshape(-1, x.shape[2]), y.ravel()
    second = np.where(subsets[:, :, None] & subsets[:, None], x.T @ x, np.eye(x.shape[1]))
    cross = np.where(subsets, x.T @ y, 0.0)
    inverse = np.linalg.pinv(second, rcond=1e-12, hermitian=True)
    weights: Floats = (inverse @ cross[:, :, None])[:, :, 0].T
    return weights


def p_values(x: Floats, y: Floats, subsets: npt.NDArray[np.bool_]) -> Floats:
    """The p-value of each subset's invariance, (S,), corrected for the number of environments.

    From inputs (E, B, D), targets (E, B) and subsets (S, D); NaN where a residual has no variance.
    """
    residuals = y[:, :, None] - x @ fits(x, y, subsets)
    environments, count = residuals.shape[:2]
    smallest = np.full(len(subsets), np.inf)
    for e in range(environments):
        inside = residuals[e]
        outside = np.delete(residuals, e, 0).reshape(-1, len(subsets))
        with np.errstate(divide="ignore", invalid="ignore"):
            p_mean = scipy.stats.ttest_ind(inside, outside, equal_var=False).pvalue
            ratio = inside.var(0, ddof=1) / outside.var(0, ddof=1)
        above = scipy.stats.f.sf(ratio, count - 1, len(outside) - 1)
        p_variance = 2 * np.minimum(above, 1 - above)
        smallest = np.minimum(smallest, 2 * np.minimum(p_mean, p_variance))
    corrected: Floats = smallest * environments
    return corrected
