"""The temporal AND-mask: agreement of signs over the last steps, with one environment a step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Needs, register
from oodbench.errors import UserError, unknown
from oodbench.hparams import hparam, log_uniform, uniform
from oodbench.optimizers import UpdateRule
from oodbench.seeds import derive

DECAYS = ("after", "coupled")
"""The ways in which weight decay enters `TemporalANDMask`."""
ROUND_OFF = 1e-6
"""The round-off by which a mean of signs may fall short of a threshold and still meet it."""


class TemporalANDMask(torch.optim.Optimizer):
    """Adam that updates only components whose gradients' signs agreed over the last steps.

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
        """Set the optimizer up.

        Raises UserError for betas outside [0, 1), tau outside [0, 1] or an unknown `decay`.
        """
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
        """Do one update of every parameter that has a gradient."""
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
        """The scalars of the update `count`: rates, complements of the betas, bias corrections."""
        numbers = {"rate": group["lr"], "decay": group["weight_decay"], "eps": group["eps"]}
        numbers["threshold"] = group["tau"] - ROUND_OFF
        for name, beta in zip("mva", group["betas"], strict=True):
            numbers[f"rest_{name}"] = 1 - beta
            numbers[f"fix_{name}"] = 1 - beta**count if group["bias_correction"] else 1.0
        return numbers

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
        """Update parameter, m, v and a in place; the scalars in `n` may be tensors of any shape."""
        a.lerp_(gradient.sign(), n["rest_a"])
        if group["decay"] == "coupled":
            gradient = gradient + n["decay"] * parameter
        m.lerp_(gradient, n["rest_m"])
        v.lerp_(gradient.square(), n["rest_v"])
        kept = (a / n["fix_a"]).abs() >= n["threshold"]
        parameter -= n["rate"] * (m / n["fix_m"]) / (v / n["fix_v"] + n["eps"]).sqrt() * kept
        if group["decay"] == "after":
            parameter -= n["rate"] * n["decay"] * parameter

    rule: ClassVar[UpdateRule]


TemporalANDMask.rule = UpdateRule(
    ("m", "v", "a"),
    TemporalANDMask.numbers,
    TemporalANDMask.update,
    int,
    frozenset({"betas", "tau"}),
)


@register("TemporalANDMask", paper="arXiv:2009.00329, algorithm 1")
class TemporalANDMaskERM(Algorithm):
    """One environment's risk a step, with an optimizer that requires signs to agree across steps.

    Each training environment comes once in every round of E steps, in an order that the trial draws
    for every round (section 4.3). The optimizer, `TemporalANDMask`, takes any objective: a method of
    your own returns it from `configure`. `optimizer`, `momentum` and `environments_per_step` have
    no effect here.
    """

    needs = Needs(environments=2)
    changes = "gradient"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults: the paper's best run (table 3); ranges: around its five best."""

        lr: float = hparam(0.0078, log_uniform(1e-3, 1e-1), low=0.0)
        weight_decay: float = hparam(0.057, log_uniform(1e-3, 1e-1), low=0.0)
        beta1: float = hparam(0.21, uniform(0.0, 0.9), low=0.0, high=0.9999)
        beta2: float = hparam(0.999, low=0.0, high=0.9999)
        beta3: float = hparam(0.79, uniform(0.5, 0.95), low=0.0, high=0.9999)
        tau: float = hparam(0.36, uniform(0.0, 0.8), low=0.0, high=1.0)
        decay: str = hparam("after", options=DECAYS)
        bias_correction: bool = hparam(False)

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizer of Algorithm 1."""
        h = self.hparams
        optimizer = TemporalANDMask(
            [p for p in self.parameters() if p.requires_grad],
            h.lr,
            (h.beta1, h.beta2, h.beta3),
            h.tau,
            weight_decay=h.weight_decay,
            decay=h.decay,
            bias_correction=h.bias_correction,
        )
        return {"main": optimizer}

    def environments_at(self, step: int) -> Sequence[int]:
        """The one training environment whose turn it is."""
        names: Any = self.problem.environments
        turn, place = divmod(step, len(names))
        seed = self.problem.seed
        order = sorted(range(len(names)), key=lambda e: derive("turn", seed, turn, names[e]))
        return [order[place]]
