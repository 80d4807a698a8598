"""torch.optim without torch's compiler, which its optimizers import on their first use: 1.4 CPU s."""

import inspect

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer


def spare_the_compiler() -> None:
    """Have Adam, AdamW and SGD work as ever, but not tell the compiler to leave them alone.

    What they compute is the same, bit for bit. `torch.compile` of their steps loses its graph breaks.
    """
    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        plain = inspect.unwrap(getattr(Optimizer, name))
        plain.__dynamo_disable = plain  # what torch._compile looks for
    for cls in (Adam, AdamW, SGD):
        cls.step = torch.no_grad()(inspect.unwrap(cls.step))  # type: ignore[method-assign]
