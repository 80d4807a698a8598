"""Optimizers over the parameters of K runs at once, with different rates for each run.

All trained parameters of a run are one row of a matrix (K, P), so that an update takes a handful of
operations for any number of runs and tensors. The updates equal those of the runs' torch optimizers, whose
states are read at the start and written back.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.data.streams import to_device
from oodbench.optimizers import Rates, UpdateRule, kind_of

Numbers = Mapping[str, Any]


def _adam_numbers(group: Numbers, count: int) -> dict[str, float]:
    b1, b2 = group["betas"]
    second = math.sqrt(1 - b2**count)
    return {
        "size": group["lr"] / (1 - b1**count) * second,
        "floor": group["eps"] * second,
        "decay": group["weight_decay"],
        "rate": group["lr"],
    }


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, group: Numbers, n: Any) -> None:
    # the decay is added to the gradient; `size` and `floor` correct the bias of m and v
    b1, b2 = group["betas"]
    g = g.addcmul(p, n["decay"])
    m.lerp_(g, 1 - b1)
    v.mul_(b2).addcmul_(g, g, value=1 - b2)
    p.sub_(n["size"] * m / v.sqrt().add_(n["floor"]))


def _adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor, group: Numbers, n: Any) -> None:
    p.mul_(1 - n["rate"] * n["decay"])
    _adam(p, g, m, v, group, {**n, "decay": torch.zeros_like(n["decay"])})


def _sgd_numbers(group: Numbers, count: int) -> dict[str, float]:
    names = {"rate": "lr", "decay": "weight_decay", "momentum": "momentum"}
    return {name: group[key] for name, key in names.items()}


def _sgd(p: Tensor, g: Tensor, buffer: Tensor, group: Numbers, n: Any) -> None:
    buffer.mul_(n["momentum"]).add_(g.addcmul(p, n["decay"]))
    p.sub_(n["rate"] * buffer)


def _steps(count: int) -> Tensor:
    return torch.tensor(float(count))


RULES: dict[type[torch.optim.Optimizer], UpdateRule] = {
    torch.optim.Adam: UpdateRule(("exp_avg", "exp_avg_sq"), _adam_numbers, _adam, _steps),
    torch.optim.AdamW: UpdateRule(("exp_avg", "exp_avg_sq"), _adam_numbers, _adamw, _steps),
    torch.optim.SGD: UpdateRule(
        ("momentum_buffer",), _sgd_numbers, _sgd, varying=frozenset({"momentum"})
    ),
}
"""torch's optimizers -> their vectorized update rules; other optimizers have an attribute `rule`."""
USUAL: dict[type[torch.optim.Optimizer], Numbers] = {
    torch.optim.Adam: {"amsgrad": False, "maximize": False, "decoupled_weight_decay": False},
    torch.optim.AdamW: {"amsgrad": False, "maximize": False},
    torch.optim.SGD: {"dampening": 0, "nesterov": False, "maximize": False},
}
"""Option values that a rule assumes; runs with other values are not vectorized."""
VARYING = {"params", "lr", "weight_decay"}
"""Options in which the runs of a program may differ, for every rule."""


def rule_of(optimizer: torch.optim.Optimizer) -> UpdateRule | None:
    """The vectorized update rule of an optimizer, or None."""
    kind = kind_of(optimizer)
    return RULES.get(kind, getattr(kind, "rule", None))


def shared_options(optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """The options that the runs of a program share, or None if `optimizer` cannot be vectorized."""
    rule = rule_of(optimizer)
    if rule is None or len(optimizer.param_groups) != 1:
        return None
    varying = VARYING | rule.varying
    options = {k: v for k, v in optimizer.param_groups[0].items() if k not in varying}
    usual = USUAL.get(kind_of(optimizer), options)
    return options if all(options.get(k, v) == v for k, v in usual.items()) else None


class VectorizedOptimizer:
    """An optimizer of the K rows of a matrix of parameters."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: Sequence[Sequence[nn.Parameter]],
    ) -> None:
        """Read the states of K optimizers of one kind, given the `parameters` of each row."""
        rule = rule_of(optimizers[0])
        assert rule is not None
        self._rule = rule
        self._groups: list[Any] = [o.param_groups[0] for o in optimizers]
        self._optimizers, self._parameters = optimizers, parameters
        self._slots = [
            torch.stack([self._row(k, slot) for k in range(len(optimizers))])
            for slot in self._rule.slots
        ]
        states = [o.state.get(p[0], {}) for o, p in zip(optimizers, parameters, strict=True)]
        self._counts = [int(state.get("step", len(state))) for state in states]

    def _row(self, k: int, slot: str) -> Tensor:
        states = self._optimizers[k].state
        kept = [(states.get(p, {}).get(slot), p) for p in self._parameters[k]]
        values = [torch.zeros_like(p) if value is None else value for value, p in kept]
        return torch.cat([value.detach().flatten() for value in values])

    def restart(self, k: int) -> None:
        """Reset the optimizer state of row k."""
        self._counts[k] = 0
        for slot in self._slots:
            slot[k].zero_()

    def numbers(self, rates: Sequence[Sequence[Rates]]) -> list[dict[str, Tensor]]:
        """The rule's numbers in the next updates, (K, 1) each, given the rates of each row in each update.

        They are copied to the device at once.
        """
        counts, rows = list(self._counts), []
        for of_step in rates:
            for k, (group, given) in enumerate(zip(self._groups, of_step, strict=True)):
                group["lr"], group["weight_decay"] = given.lr, given.weight_decay
                counts[k] = 1 if given.restart else counts[k] + 1
                rows.append(self._rule.numbers(group, counts[k]))
        like = self._parameters[0][0]
        values = torch.tensor([[*row.values()] for row in rows], dtype=like.dtype)
        steps = to_device(values, like.device).view(len(rates), len(counts), -1)
        return [dict(zip(rows[0], v.unsqueeze(2).unbind(1), strict=True)) for v in steps]

    def step(self, parameters: Tensor, gradients: Tensor, numbers: Mapping[str, Tensor]) -> None:
        """Update parameters (K, P) by gradients (K, P), with the `numbers` of the update."""
        self._counts = [count + 1 for count in self._counts]
        self._rule.update(parameters, gradients, *self._slots, self._groups[0], numbers)

    def sync_to_runs(self) -> None:
        """Write the states into the runs' optimizers, as views of the rows."""
        pairs = zip(self._optimizers, self._parameters, strict=True)
        for k, (optimizer, parameters) in enumerate(pairs):
            optimizer.state.clear()
            start = 0
            for p in parameters if self._counts[k] else ():
                part = slice(start, start := start + p.numel())
                state: dict[str, Any] = {
                    name: slot[k, part].view_as(p)
                    for name, slot in zip(self._rule.slots, self._slots, strict=True)
                }
                if self._rule.counted is not None:
                    counted = self._rule.counted(self._counts[k])
                    if isinstance(counted, Tensor) and self._groups[k].get("fused"):
                        counted = counted.to(p.device)
                    state["step"] = counted
                optimizer.state[p] = state
