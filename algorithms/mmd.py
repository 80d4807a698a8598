"""Maximum mean discrepancy between the environments' features."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oodbench.algorithms import Outputs, register

from .feature_matching import FeatureMatching

GAMMAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
"""The factors g of the Gaussian kernels on features (arXiv:2007.01434's code)."""
LOWEST = -87.0
"""The least exponent of the kernels: below it exp is subnormal in float32, and takes forty times as
long."""
ROWS = 64
"""Rows of a kernel matrix computed at a time, so that they stay in the processor's cache."""


@register(
    "MMD", paper="Li et al., Domain generalization with adversarial feature learning (CVPR 2018)"
)
class MMD(FeatureMatching):
    """Features with a small maximum mean discrepancy between any two environments.

    The distance is the mean over the pairs of environments of mean K(x, x') + mean K(y, y') - 2 mean
    K(x, y) with all pairs of examples (a V-statistic) and K(x, y) = sum_g exp(-g |x - y|^2) for g = 1e-3,
    1e-2, ..., 1e3: the form of arXiv:2007.01434's code, without the paper's adversarial autoencoder. The
    bandwidths are absolute: for wide features that are not normalised most kernels are 0. One kernel matrix
    over all examples serves all pairs of environments, so the cost is quadratic in the size of the whole
    batch.
    """

    def distance(self, out: Outputs) -> Tensor:
        """The mean distance over pairs, from the E x E means of the kernel's blocks."""
        environments, examples = out.features.shape[:2]
        kernel = gaussian_kernels(squared_distances(out.features.flatten(0, 1)), GAMMAS)
        blocks = kernel.view(environments, examples, environments, examples).mean((1, 3))
        total = environments * blocks.diagonal().sum() - blocks.sum()
        return 2 * total / max(1, environments * (environments - 1))


def squared_distances(x: Tensor) -> Tensor:
    """|x_i - x_j|^2 of vectors (N, F), as (N, N)."""
    centred = x - x.mean(0)  # reduces round-off
    squares = centred.square().sum(1)
    return (squares.unsqueeze(1) + squares - 2 * centred @ centred.mT).clamp(min=0)


def gaussian_kernels(distances: Tensor, gammas: Sequence[float]) -> Tensor:
    """sum_g exp(-g d) of squared distances d (N, N)."""
    kernel: Tensor
    kernel, _ = _Gaussians.apply(distances, gammas)
    return kernel


class _Gaussians(torch.autograd.Function):
    """sum_g exp(-g d), which saves only the slope for the backward pass, not every term."""

    generate_vmap_rule = True

    @staticmethod
    def forward(distances: Tensor, gammas: Sequence[float]) -> tuple[Tensor, Tensor]:
        """The sum and its slope."""
        parts = [_sum_and_slope(rows, gammas) for rows in torch.split(distances, ROWS)]
        total, slope = (torch.cat(part) for part in zip(*parts, strict=True))
        return total, slope

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save the slope for the backward pass."""
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """The gradient in d: the slope times the gradient of the sum."""
        (slope,) = ctx.saved_tensors
        return slope * gradient, None


def _sum_and_slope(distances: Tensor, gammas: Sequence[float]) -> tuple[Tensor, Tensor]:
    total, slope = torch.zeros_like(distances), torch.zeros_like(distances)
    for gamma in gammas:
        term = distances.clamp(max=-LOWEST / gamma).mul_(-gamma).exp_()
        total += term
        slope.sub_(term, alpha=gamma)
    return total, slope
