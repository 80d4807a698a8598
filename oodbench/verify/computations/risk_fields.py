"""Which way MM-REx and V-REx push two training risks (figure 11.4 of the thesis on arXiv:2003.00688)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oodbench.results.frames import Frames
from oodbench.verify.computations import computation
from oodbench.verify.computations.rex_toys import on_risks
from oodbench.verify.measured import Line, Measured, Panel

METHODS: dict[str, dict[str, Any]] = {
    "MMREx": {"lambda_min": -1.0},
    "VREx": {"penalty_weight": 6.0},
}
"""The methods, at weights for which their two forces are equal where the risks differ by 1/2."""
NEAR = 1e-3
"""The distance from equal risks at which the jump at equality is looked at."""


@computation("risk-fields")
def risk_fields(trials: int, frames: Mapping[str, Frames]) -> Measured:
    """The gradients of the methods' objectives on a grid of risks and at some points; nothing is random."""
    axis = torch.linspace(0.05, 0.95, 10)
    grid = torch.cartesian_prod(axis, axis)
    values: dict[str, list[float]] = {}
    panels = []
    for name in METHODS:
        field = gradients(name, grid)
        x, y, dx, dy = torch.cat([grid, -0.03 * field], 1).double().T.round(decimals=6).tolist()
        line = Line(label="descent", x=x, y=y, dx=dx, dy=dy)
        panels.append(Panel(title=name, x="first risk", y="second risk", lines=[line]))
        apart, above, below = gradients(
            name, torch.tensor([[0.75, 0.25], [0.5 + NEAR, 0.5], [0.5, 0.5 + NEAR]])
        ).double()
        values |= {
            f"{name}: first risk": [float(apart[0])],
            f"{name}: second risk": [float(apart[1])],
            f"{name}: jump at equality": [float((above - below).norm())],
        }
    return Measured(values=values, panels=panels)


def gradients(name: str, risks: Tensor) -> Tensor:
    """The gradient (N, 2) of a method's objective at pairs of risks (N, 2)."""
    objective = on_risks(name, 2, **METHODS[name])
    found = []
    for pair in risks:
        point = pair.clone().requires_grad_()
        objective(point).backward()  # type: ignore[no-untyped-call]
        assert point.grad is not None
        found.append(point.grad)
    return torch.stack(found)
