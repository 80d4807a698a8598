"""How differently the environments' losses curve at a minimum that they share.

Section 2.1 of arXiv:2009.00329: a minimum is inconsistent if one can walk away from it along the
valley of one environment while the loss of another rises. Here by the quadratic approximation
L_e(theta) = (theta - theta*)' H_e (theta - theta*) / 2, from the environments' Hessians H_e.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from torch import Tensor
from torch.func import jacrev, vmap

from oodbench.errors import UserError

Array = NDArray[np.float64]
Predict = Callable[[Tensor], Tensor]
Losses = Callable[[Tensor], Tensor]


def inconsistency(hessians: ArrayLike, ridge: float = 0.0) -> float:
    """The largest rise of one environment's loss per unit that another's may rise; 1 is the least.

    `hessians` are (E, P, P), symmetric, or their diagonals (E, P); `ridge` is added to every
    diagonal, as the paper advises. With x' H_A x / 2 <= epsilon the largest x' H_B x / 2 is
    epsilon times the largest eigenvalue of H_A^-1 H_B, so the paper's consistency score (in the
    thesis version, against the loss at the minimum) is -epsilon times the largest of these over all
    pairs of environments. Raises UserError for a Hessian that is not positive definite.
    """
    h = _checked(hessians, ridge)
    pairs = [(a, b) for a in h for b in h if a is not b]
    if h.ndim == 2:
        return max(float((b / a).max()) for a, b in pairs)
    return max(float(eigh(b, a, eigvals_only=True)[-1]) for a, b in pairs)


def volume_ratio(hessians: ArrayLike, ridge: float = 0.0) -> float:
    """log(det(arithmetic mean) / det(geometric mean)) of the Hessians, at least 0.

    The determinant of the geometric (Karcher) mean is the geometric mean of the determinants, so
    the matrix itself is not needed. Arguments and errors as for `inconsistency`.
    """
    h = _checked(hessians, ridge)
    return _log_det(h.mean(0)) - float(np.mean([_log_det(one) for one in h]))


def bound(hessians: ArrayLike, ridge: float = 0.0) -> float:
    """An upper bound of `inconsistency` for two environments with Hessians that commute.

    With R the ratio of determinants, exp of `volume_ratio`, it is 4 R^2 - 2: for one parameter
    that is r + 1/r, with r the ratio of the two curvatures. Proposition 3 of arXiv:2009.00329
    prints 2 R^2, which curvatures of 1 and 100 already exceed.
    """
    return 4 * float(np.exp(2 * volume_ratio(hessians, ridge))) - 2


def gauss_newton(predict: Predict, losses: Losses, theta: Tensor) -> Array:
    """The Gauss-Newton matrix (P, P) of an environment's risk at theta (P,).

    `predict` maps theta to the outputs (N, C) for the environment's examples, `losses` outputs
    (C,) to a loss that is convex in them. It is the Hessian where the examples are fitted, and
    unlike the Hessian it is never indefinite.
    """
    jacobian, curvature = _outputs(predict, losses, theta)
    found = torch.einsum("ncp,ncd,ndq->pq", jacobian, curvature, jacobian) / len(jacobian)
    return np.asarray(found, dtype=np.float64)


def gauss_newton_diagonal(predict: Predict, losses: Losses, theta: Tensor) -> Array:
    """The diagonal (P,) of `gauss_newton`, without the matrix."""
    jacobian, curvature = _outputs(predict, losses, theta)
    found = torch.einsum("ncp,ncd,ndp->p", jacobian, curvature, jacobian) / len(jacobian)
    return np.asarray(found, dtype=np.float64)


def _outputs(predict: Predict, losses: Losses, theta: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs' Jacobian (N, C, P) and the losses' Hessians with respect to them (N, C, C)."""
    outputs = predict(theta).detach()
    return jacrev(predict)(theta).detach(), vmap(jacrev(jacrev(losses)))(outputs).detach()


def _checked(hessians: ArrayLike, ridge: float) -> Array:
    h = np.asarray(hessians, dtype=np.float64)
    square = h.ndim == 3 and h.shape[1] == h.shape[2]
    if len(h) < 2 or not (h.ndim == 2 or square):
        raise UserError(
            "the consistency of a minimum needs the Hessians (E, P, P) or their diagonals (E, P) "
            f"of at least two environments, not an array of the shape {h.shape}"
        )
    h = h + ridge * (np.eye(h.shape[-1]) if square else 1.0)
    lowest = min(float(np.linalg.eigvalsh(one)[0] if square else one.min()) for one in h)
    if not lowest > 0:
        raise UserError(
            f"the Hessians must be positive definite, but their smallest eigenvalue is {lowest:.3g}; "
            "a larger ridge makes them so"
        )
    return h


def _log_det(h: Array) -> float:
    return float(np.log(h).sum() if h.ndim == 1 else np.linalg.slogdet(h)[1])
