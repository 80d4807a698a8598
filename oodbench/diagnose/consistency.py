"""How differently the environments' losses curve at a minimum that they share.

Section 2.1 of arXiv:2009.00329: a minimum is inconsistent if one can walk away from it along the
valley of one environment while the loss of another rises. Here losses are approximated by
L_e(theta) = (theta - theta*)' H_e (theta - theta*) / 2, with the environments' Hessians H_e. The
examples, figures 3, 11 and 12, are diagonal Hessians and a network made of two patches.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from torch import Tensor
from torch.func import jacrev, vmap

from oodbench.errors import UserError
from oodbench.report.figures import Finding

Array = NDArray[np.float64]
Predict = Callable[[Tensor], Tensor]
Losses = Callable[[Tensor], Tensor]

DIAGONAL: dict[str, tuple[Sequence[float], Sequence[float]]] = {
    "equal": ((1.0, 1.0), (1.0, 1.0)),
    "diag(.05, 1), diag(1, .05)": ((0.05, 1.0), (1.0, 0.05)),
    "diag(.01, 1), diag(1, .01)": ((0.01, 1.0), (1.0, 0.01)),
    "1, 100": ((1.0,), (100.0,)),
}
"""Pairs of diagonal Hessians: the paper's, the best case, and one that breaks its bound."""
THETA = (100.0, -50.0, 100.0, -75.0, 1.0, 1.0)
"""The fit of `predict` to `target`, as printed."""
CHANGED = (100.0, -50.0, 100.0, -75.0, 1.0, -0.5)
"""Parameters with which environment A has the same loss as with `THETA`."""
RIDGE = 1e-4


def inconsistency(hessians: ArrayLike, ridge: float = 0.0) -> float:
    """The largest rise of one environment's loss per unit that another's may rise; 1 is the least.

    `hessians` are (E, P, P), symmetric, or their diagonals (E, P); `ridge` is added to every
    diagonal, as the paper advises. With x' H_A x / 2 <= epsilon the largest x' H_B x / 2 is
    epsilon times the largest eigenvalue of H_A^-1 H_B, so the paper's consistency score (in the
    thesis version, against the loss at the minimum) is -epsilon times the largest eigenvalue over all
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
    matrix = torch.einsum("ncp,ncd,ndq->pq", jacobian, curvature, jacobian) / len(jacobian)
    return np.asarray(matrix, dtype=np.float64)


def gauss_newton_diagonal(predict: Predict, losses: Losses, theta: Tensor) -> Array:
    """The diagonal (P,) of `gauss_newton`, without the matrix."""
    jacobian, curvature = _outputs(predict, losses, theta)
    values = torch.einsum("ncp,ncd,ndp->p", jacobian, curvature, jacobian) / len(jacobian)
    return np.asarray(values, dtype=np.float64)


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


def predict(theta: Tensor, x: Tensor) -> Tensor:
    """Equation 5: two sigmoid neurons; (N, 1) for theta (6,) and x (N,)."""
    a, b, c, d, v, w = theta
    outputs: Tensor = v * torch.sigmoid(a * x + b) + w * torch.sigmoid(c * x + d)
    return outputs.unsqueeze(1)


def target(x: Tensor) -> Tensor:
    """The staircase to be fitted: 0, 1 from 0.5 on, 2 from 0.8 on, with ramps between; (N, 1)."""
    return ((10 * (x - 0.4)).clamp(0, 1) + (10 * (x - 0.7)).clamp(0, 1)).unsqueeze(1)


def inputs() -> dict[str, Tensor]:
    """Environment A sees [0, 0.5], B sees [0.5, 1], both densely."""
    x = torch.linspace(0, 1, 2001, dtype=torch.float64)
    return {"A": x[:1001], "B": x[1000:]}


def risk(theta: Sequence[float], x: Tensor) -> float:
    """The mean squared error on x."""
    predicted = predict(torch.tensor(theta, dtype=torch.float64), x)
    return (predicted - target(x)).square().mean().item()


def curvature(*, diagonal: bool) -> Array:
    """The Gauss-Newton matrices (2, 6, 6) of the two risks at `THETA`, or their diagonals (2, 6)."""
    compute = gauss_newton_diagonal if diagonal else gauss_newton
    theta = torch.tensor(THETA, dtype=torch.float64)
    return np.stack(
        [compute(partial(predict, x=x), squared_error, theta) for x in inputs().values()]
    )


def squared_error(residual: Tensor) -> Tensor:
    """The squared error, () for (1,): a loss with constant curvature."""
    return residual.square().sum()


def consistency() -> Finding:
    """Scores of the diagonal examples and of the patchwork, against the bounds in closed form."""
    cases = [(name, np.array(pair), 0.0) for name, pair in DIAGONAL.items()]
    cases += [
        ("patchwork, diagonals", curvature(diagonal=True), RIDGE),
        ("patchwork, matrices", curvature(diagonal=False), RIDGE),
    ]
    rows = []
    for name, hessians, ridge in cases:
        ratio = float(np.exp(volume_ratio(hessians, ridge)))
        values = (inconsistency(hessians, ridge), ratio, 2 * ratio**2, bound(hessians, ridge))
        rows.append([name, *(f"{value:.4g}" for value in values)])
    losses = ", ".join(
        f"L_{name} {risk(THETA, x):.4f} to {risk(CHANGED, x):.4f}" for name, x in inputs().items()
    )

    def plot(figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        _plot_ellipses(left)
        _plot_fits(middle)
        _plot_curvatures(right)

    header = ["Hessians", "inconsistency", "det ratio", "2 R^2", "4 R^2 - 2"]
    notes = [
        "Inconsistency: the consistency score is -epsilon times it. Det ratio R: of the Hessians' "
        "arithmetic and geometric mean.",
        "The paper bounds the inconsistency by 2 R^2, which does not hold; 4 R^2 - 2 does where the "
        "Hessians commute.",
        f"Patchwork: Gauss-Newton, ridge {RIDGE:g}. Its last weight from 1 to -0.5: {losses}.",
    ]
    return Finding("Consistency of a shared minimum", header, rows, notes, plot, (11, 3.6))


def _plot_ellipses(axes: Axes) -> None:
    a, b = (np.array(h) for h in DIAGONAL["diag(.01, 1), diag(1, .01)"])
    shown = {"A": a, "B": b, "arithmetic mean": (a + b) / 2, "geometric mean": np.sqrt(a * b)}
    angle = np.linspace(0, 2 * np.pi, 200)
    for i, (name, h) in enumerate(shown.items()):
        x, y = np.cos(angle) / np.sqrt(h[0]), np.sin(angle) / np.sqrt(h[1])
        axes.plot(x, y, "-" if i < 2 else "--", color=f"C{i}", label=name)
    axes.set(xlim=(-13, 13), ylim=(-11, 17), aspect="equal", title="Where the loss is 1/2")
    axes.legend(fontsize="small", loc="upper center", ncols=2)


def _plot_fits(axes: Axes) -> None:
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)
    axes.plot(x, target(x), color="black", label="target")
    for i, (name, theta) in enumerate((("fit", THETA), ("last weight -0.5", CHANGED))):
        values = predict(torch.tensor(theta, dtype=torch.float64), x)
        axes.plot(x, values, "--", color=f"C{i}", label=name)
    axes.axvspan(0, 0.5, color="C0", alpha=0.08)
    axes.axvspan(0.5, 1, color="C1", alpha=0.08)
    for place, name in ((0.25, "A"), (0.75, "B")):
        axes.text(place, -0.35, name, ha="center")
    axes.set(xlabel="x", title="The patchwork", xlim=(0, 1), ylim=(-0.5, 2.2))
    axes.legend(fontsize="small", loc="upper left")


def _plot_curvatures(axes: Axes) -> None:
    for i, (name, values) in enumerate(zip("AB", curvature(diagonal=True), strict=True)):
        places = np.arange(len(values)) + 0.4 * i - 0.2
        axes.bar(places, np.maximum(values, 1e-7), 0.4, color=f"C{i}", label=name)
    names = [f"$\\theta_{i}$" for i in range(1, len(THETA) + 1)]
    axes.set_xticks(range(len(THETA)), names)
    axes.set(yscale="log", ylim=(1e-6, 10), title="Its curvature by parameter")
    axes.legend(fontsize="small", title="environment")
