"""Optimizers and learning-rate schedules by name."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.errors import UserError, unknown

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda p: 1.0,
    # arXiv:2009.00329: x 0.1 once at 3/4 of the training (its code), or at 1/2 and 3/4 (its text).
    "drop": lambda p: 0.1 if p >= 3 / 4 else 1.0,
    "two_drops": lambda p: 0.1 ** ((p >= 1 / 2) + (p >= 3 / 4)),
    # WILDS' code for `encode`: after 3 and 6 of 12 epochs.
    "early_drops": lambda p: 0.1 ** ((p >= 1 / 4) + (p >= 1 / 2)),
    "three_drops": lambda p: 0.3 ** ((p >= 0.60) + (p >= 0.74) + (p >= 0.88)),
    # 0.9995^k over 1000 steps: the linear example in the notebook of arXiv:2009.00329's code.
    "exponential": lambda p: math.exp(-p / 2),
    "cosine": lambda p: 0.5 * (1 + math.cos(math.pi * p)),
    "linear": lambda p: 1 - p,
    # WILDS (arXiv:2012.07421, its code): x 0.96 after each of 60 or of 200 epochs.
    "decay_60": lambda p: 0.96 ** math.floor(60 * p),
    "decay_200": lambda p: 0.96 ** math.floor(200 * p),
    # Ganin et al. 2016 (arXiv:1505.07818): mu_p = mu_0 / (1 + 10 p)^0.75.
    "ganin": lambda p: (1 + 10 * p) ** -0.75,
}
"""Learning-rate factors as functions of the progress p = step / steps in [0, 1)."""
DECAYS = ("after", "coupled")
"""How weight decay enters `TemporalANDMask`."""
ROUND_OFF = 1e-6
"""By how much a mean of signs may fall short of a threshold that it meets."""


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], lr: float, momentum: float
) -> torch.optim.Optimizer:
    """The optimizer `name` (`adam`, `adamw` or `sgd`); weight decay is set by `set_rates`."""
    trained = [p for p in parameters if p.requires_grad]
    if name == "adam":
        return torch.optim.Adam(trained, lr=lr, fused=True)
    if name == "adamw":
        return torch.optim.AdamW(trained, lr=lr, fused=True)
    return torch.optim.SGD(trained, lr=lr, momentum=momentum)


def set_rates(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """Set the learning rate and the weight decay (coupled, but for `adamw`) of the next step."""
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = lr, weight_decay


class TemporalANDMask(torch.optim.Optimizer):
    """Adam whose updates pass where the gradient's sign agreed over the last steps.

    Algorithm 1 of arXiv:2009.00329, for the gradient g of one environment a step:

        m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2,   a = b3 a + (1 - b3) sign(g),
        theta -= lr * m * 1[|a| >= tau] / sqrt(v + eps)

    The moments of a masked component go on accumulating. As printed nothing is corrected for
    starting at zero: |a| is at most 1 - b3^t after t steps, so that the first ones are masked.
    With `bias_correction` m, v and a are divided by 1 - b^t, each by its own b. `decay` says how
    weight decay enters: `after`, as a second update theta -= lr * weight_decay * theta that no
    mask stops (the paper's choice), or `coupled`, added to g for the moments m and v, not for the
    signs. b2 and eps are not in the paper; the defaults of b1, b3, tau and weight_decay are those
    of its best run (table 3). tau = 0 is Adam.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 0.0078,
        betas: tuple[float, float, float] = (0.21, 0.999, 0.79),
        tau: float = 0.36,
        eps: float = 1e-8,
        weight_decay: float = 0.057,
        decay: str = "after",
        bias_correction: bool = False,
    ) -> None:
        """Raises UserError for betas outside [0, 1), tau outside [0, 1] or an unknown `decay`."""
        if not all(0 <= beta < 1 for beta in betas):
            raise UserError(f"TemporalANDMask: 'betas' must be in [0, 1), not {betas}")
        if not 0 <= tau <= 1:
            raise UserError(f"TemporalANDMask: 'tau' must be between 0 and 1, not {tau}")
        if decay not in DECAYS:
            raise unknown("decay", decay, DECAYS, "TemporalANDMask")
        settings = {"lr": lr, "betas": betas, "tau": tau, "eps": eps}
        settings |= {"weight_decay": weight_decay, "decay": decay}
        super().__init__(parameters, settings | {"bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            zero = torch.zeros_like(parameter)
            state |= {"step": 0, "m": zero, "v": zero.clone(), "a": zero.clone()}
        state["step"] += 1
        m, v, a = (state[name] for name in "mva")
        self.update(parameter, gradient, m, v, a, group, self.numbers(group, state["step"]))

    @staticmethod
    def numbers(group: Mapping[str, Any], count: int) -> dict[str, float]:
        """What the update number `count` needs to know: rates, complements of betas, corrections."""
        found = {"rate": group["lr"], "decay": group["weight_decay"], "eps": group["eps"]}
        found["threshold"] = group["tau"] - ROUND_OFF
        for name, beta in zip("mva", group["betas"], strict=True):
            found[f"rest_{name}"] = 1 - beta
            found[f"fix_{name}"] = 1 - beta**count if group["bias_correction"] else 1.0
        return found

    @staticmethod
    def update(
        parameter: Tensor,
        gradient: Tensor,
        m: Tensor,
        v: Tensor,
        a: Tensor,
        group: Mapping[str, Any],
        n: Mapping[str, Any],
    ) -> None:
        """Change parameter, m, v and a by one update; its `numbers` may be tensors of any shape."""
        a.lerp_(gradient.sign(), n["rest_a"])
        if group["decay"] == "coupled":
            gradient = gradient + n["decay"] * parameter
        m.lerp_(gradient, n["rest_m"])
        v.lerp_(gradient.square(), n["rest_v"])
        kept = (a / n["fix_a"]).abs() >= n["threshold"]
        parameter -= n["rate"] * (m / n["fix_m"]) / (v / n["fix_v"] + n["eps"]).sqrt() * kept
        if group["decay"] == "after":
            parameter -= n["rate"] * n["decay"] * parameter
