"""Minima whose consistency is known: diagonal Hessians, and a network that is sewn together.

Figures 3, 11 and 12 of arXiv:2009.00329.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from oodbench.diagnose.consistency import (
    Array,
    bound,
    gauss_newton,
    gauss_newton_diagonal,
    inconsistency,
    volume_ratio,
)
from oodbench.report.figures import Finding

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
"""Parameters that environment A does not tell from `THETA`."""
RIDGE = 1e-4


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
    """The squared error, () for (1,): a loss that curves alike everywhere."""
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
    environments = inputs()
    losses = ", ".join(
        f"L_{name} {risk(THETA, x):.4f} to {risk(CHANGED, x):.4f}"
        for name, x in environments.items()
    )

    def draw(figure: Figure) -> None:
        left, middle, right = figure.subplots(1, 3)
        _draw_ellipses(left)
        _draw_fits(middle)
        _draw_curvatures(right)

    header = ["Hessians", "inconsistency", "det ratio", "2 R^2", "4 R^2 - 2"]
    notes = [
        "Inconsistency: the consistency score is -epsilon times it. Det ratio R: of the Hessians' "
        "arithmetic and geometric mean.",
        "The paper bounds the inconsistency by 2 R^2, which does not hold; 4 R^2 - 2 does where the "
        "Hessians commute.",
        f"Patchwork: Gauss-Newton, ridge {RIDGE:g}. Its last weight from 1 to -0.5: {losses}.",
    ]
    return Finding("Consistency of a shared minimum", header, rows, notes, draw, (11, 3.6))


def _draw_ellipses(axes: Axes) -> None:
    a, b = (np.array(h) for h in DIAGONAL["diag(.01, 1), diag(1, .01)"])
    shown = {"A": a, "B": b, "arithmetic mean": (a + b) / 2, "geometric mean": np.sqrt(a * b)}
    angle = np.linspace(0, 2 * np.pi, 200)
    for i, (name, h) in enumerate(shown.items()):
        x, y = np.cos(angle) / np.sqrt(h[0]), np.sin(angle) / np.sqrt(h[1])
        axes.plot(x, y, "-" if i < 2 else "--", color=f"C{i}", label=name)
    axes.set(xlim=(-13, 13), ylim=(-11, 17), aspect="equal", title="Where the loss is 1/2")
    axes.legend(fontsize="small", loc="upper center", ncols=2)


def _draw_fits(axes: Axes) -> None:
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


def _draw_curvatures(axes: Axes) -> None:
    for i, (name, values) in enumerate(zip("AB", curvature(diagonal=True), strict=True)):
        places = np.arange(len(values)) + 0.4 * i - 0.2
        axes.bar(places, np.maximum(values, 1e-7), 0.4, color=f"C{i}", label=name)
    names = [f"$\\theta_{i}$" for i in range(1, len(THETA) + 1)]
    axes.set_xticks(range(len(THETA)), names)
    axes.set(yscale="log", ylim=(1e-6, 10), title="Its curvature by parameter")
    axes.legend(fontsize="small", title="environment")
