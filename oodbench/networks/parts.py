"""Modules run on a batch part by part, so that the activations of one part alone are in memory."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def in_parts(owner: nn.Module, function: Callable[..., Tensor], parts: int, *inputs: Any) -> Tensor:
    """The outputs (N, ...) of `function`, which runs `owner` on inputs (N, ...), from `parts` calls.

    The backward pass makes each part's activations anew, so that it is exact, at the price of a second
    forward pass. Batch normalisation takes the statistics of a part, and counts it once.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(owner)

    pieces = zip(*(x.chunk(parts) for x in inputs), strict=True)
    made = [
        checkpoint(function, *piece, use_reentrant=False, context_fn=contexts) for piece in pieces
    ]
    return torch.cat(made)


@contextmanager
def _statistics_kept(owner: nn.Module) -> Iterator[None]:
    """Within it the running statistics of batch normalisation stay as they are."""
    layers = [m for m in owner.modules() if isinstance(m, _BatchNorm)]
    before = [(m, m.momentum, m.num_batches_tracked) for m in layers]
    try:
        for m in layers:
            m.momentum, m.num_batches_tracked = 0.0, None
        yield
    finally:
        for m, momentum, tracked in before:
            m.momentum, m.num_batches_tracked = momentum, tracked
