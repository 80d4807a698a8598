"""Run modules on one micro-batch after the other, so that only one's activations are in memory."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def in_micro_batches(
    owner: nn.Module, function: Callable[..., Tensor], count: int, *inputs: Any
) -> Tensor:
    """Return the outputs (N, ...) of `function`, which runs `owner` on inputs (N, ...), from `count` calls.

    The backward pass recomputes each micro-batch's activations, so that it is exact, at the price of a
    second forward pass. Batch normalisation takes the statistics of a micro-batch, and counts it once.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(owner)

    micro_batches = zip(*(x.chunk(count) for x in inputs), strict=True)
    outputs = [
        checkpoint(function, *each, use_reentrant=False, context_fn=contexts)
        for each in micro_batches
    ]
    return torch.cat(outputs)


@contextmanager
def _statistics_kept(owner: nn.Module) -> Iterator[None]:
    """Return a context in which the running statistics of batch normalisation do not change."""
    layers = [m for m in owner.modules() if isinstance(m, _BatchNorm)]
    before = [(m, m.momentum, m.num_batches_tracked) for m in layers]
    try:
        for m in layers:
            m.momentum, m.num_batches_tracked = 0.0, None
        yield
    finally:
        for m, momentum, tracked in before:
            m.momentum, m.num_batches_tracked = momentum, tracked
