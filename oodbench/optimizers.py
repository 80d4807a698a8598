"""Optimizers and learning-rate schedules by name, and how optimizers are vectorized."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda p: 1.0,
    # arXiv:2009.00329: x 0.1 once at 3/4 of the training (its code), or at 1/2 and 3/4 (its text).
    "drop": lambda p: 0.1 if p >= 3 / 4 else 1.0,
    "two_drops": lambda p: 0.1 ** ((p >= 1 / 2) + (p >= 3 / 4)),
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


@dataclass(frozen=True)
class UpdateRule:
    """The update of one kind of optimizer, over the parameters of K runs at once, (K, P).

    A method's custom optimizer may set the class attribute `rule`, so that its runs can be
    vectorized; otherwise each run is trained separately.
    """

    slots: tuple[str, ...]
    """Names of the optimizer's state tensors of each parameter."""
    numbers: Callable[[Mapping[str, Any], int], dict[str, float]]
    """Maps a run's options and its number of updates, this one included, to the scalars of the update."""
    update: Callable[..., None]
    """Updates in place: given parameters (K, P), gradients, slots, the options that all runs share,
    and the numbers as (K, 1)."""
    counted: Callable[[int], object] | None = None
    """Makes `step` of the optimizer's state from the number of updates; None: there is no such entry."""
    varying: frozenset[str] = frozenset()
    """Options that `numbers` reads in addition to the learning rate and the weight decay, so that runs may
    differ in them."""


def make_optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    lr: float,
    momentum: float,
    scales: Mapping[nn.Parameter, float] = MappingProxyType({}),
) -> torch.optim.Optimizer:
    """The optimizer `name` (`adam`, `adamw` or `sgd`); weight decay is set by `set_rates`.

    `scales` are learning-rate factors of some parameters. Before a step, gradients are copied to the memory
    layout of their parameters if it differs.
    """
    trained: list[Any] = [p for p in parameters if p.requires_grad]
    fused = all(p.is_contiguous() for p in trained)
    if any(p in scales for p in trained):
        factors: dict[float, list[nn.Parameter]] = {scales.get(p, 1.0): [] for p in trained}
        for p in trained:
            factors[scales.get(p, 1.0)].append(p)
        trained = [{"params": group, "scale": factor} for factor, group in factors.items()]
    if name == "sgd":
        optimizer = eager(torch.optim.SGD)(trained, lr=lr, momentum=momentum)
    else:
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        optimizer = eager(kind)(trained, lr=lr, fused=fused)
    optimizer.register_step_pre_hook(_lay_out_gradients)
    return optimizer


@cache
def eager(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Derive an optimizer class that does not import torch's compiler, which takes a second.

    Torch wraps these methods for compiled functions, which this package does not use.
    """
    wrapped = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**methods, "step": step, "kind": kind})


def kind_of(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """The class of an optimizer, as torch or the user calls it."""
    return getattr(optimizer, "kind", type(optimizer))


def _lay_out_gradients(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Give every gradient the strides of its parameter.

    `backward()` already does. Other gradients have the strides that a layer's kernel chose, and
    torch's fused kernels read gradient and parameter in memory order without a check.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None and p.grad.stride() != p.stride():
                p.grad = torch.empty_like(p).copy_(p.grad)


class Rates(NamedTuple):
    """The learning rate and the weight decay of an update, and whether optimizers restart before it."""

    lr: float
    weight_decay: float
    """Added to the gradient, except for `adamw`."""
    restart: bool = False
    """Whether the optimizers' state is reset before the update."""


def set_rates(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    """Set the learning rate and the weight decay of the optimizer's next step."""
    for group in optimizer.param_groups:
        group["lr"] = rates.lr * group.get("scale", 1.0)
        group["weight_decay"] = rates.weight_decay
