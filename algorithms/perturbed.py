"""Gradients at temporarily changed weights (SAM, MLDG)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def trained(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, in the module's order."""
    return [p for p in network.parameters() if p.requires_grad]


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of a scalar with respect to each parameter, in its shape."""
    return list(torch.autograd.grad(loss, parameters, materialize_grads=True))


@contextmanager
def excursion(tensors: Sequence[Tensor]) -> Iterator[None]:
    """A context in which the tensors may be changed; afterwards their values are restored.

    Pass a network's buffers with its parameters if the running statistics of batch normalisation should
    come only from passes at the network's own parameters.
    """
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            if before:
                torch._foreach_copy_(list(tensors), before)
