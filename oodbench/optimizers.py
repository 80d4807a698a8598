"""Optimizers and learning-rate schedules by name."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda p: 1.0,
    # arXiv:2009.00329: x 0.1 once at 3/4 of the training (its code), or at 1/2 and 3/4 (its text).
    "drop": lambda p: 0.1 if p >= 3 / 4 else 1.0,
    "two_drops": lambda p: 0.1 ** ((p >= 1 / 2) + (p >= 3 / 4)),
    "three_drops": lambda p: 0.3 ** ((p >= 0.60) + (p >= 0.74) + (p >= 0.88)),
    "cosine": lambda p: 0.5 * (1 + math.cos(math.pi * p)),
    # Ganin et al. 2016 (arXiv:1505.07818): mu_p = mu_0 / (1 + 10 p)^0.75.
    "ganin": lambda p: (1 + 10 * p) ** -0.75,
}
"""Learning-rate factors as functions of the progress p = step / steps in [0, 1)."""


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], lr: float, momentum: float
) -> torch.optim.Optimizer:
    """The optimizer `name` (`adam` or `sgd`); weight decay is set step by step, see `set_rates`."""
    trained = [p for p in parameters if p.requires_grad]
    if name == "adam":
        return torch.optim.Adam(trained, lr=lr, fused=True)
    return torch.optim.SGD(trained, lr=lr, momentum=momentum)


def set_rates(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """Set the learning rate and the (coupled) weight decay of the next step."""
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = lr, weight_decay
