"""Forward passes in micro-batches, with the gradients of the whole batch (arXiv:2101.06983)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def in_micro_batches(
    network: nn.Module, function: Callable[..., Tensor], count: int, *inputs: Tensor
) -> Tensor:
    """Outputs (N, ...) of `function`, which runs the network on inputs (N, ...) in `count` micro-batches.

    Only one micro-batch's activations are in memory: the backward pass recomputes them, so that it is
    exact, at the price of a second forward pass. Batch normalisation takes the statistics of a
    micro-batch, and counts it once.
    """
    if count == 1:
        return function(*inputs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(network)

    outputs = [
        checkpoint(function, *each, use_reentrant=False, context_fn=contexts)
        for each in zip(*(x.chunk(count) for x in inputs), strict=True)
    ]
    return torch.cat(outputs)


@contextmanager
def _statistics_kept(network: nn.Module) -> Iterator[None]:
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    before = [(m, m.momentum, m.num_batches_tracked) for m in layers]
    try:
        for m in layers:
            m.momentum, m.num_batches_tracked = 0.0, None
        yield
    finally:
        for m, momentum, tracked in before:
            m.momentum, m.num_batches_tracked = momentum, tracked
