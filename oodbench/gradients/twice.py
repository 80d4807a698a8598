"""Correct second derivatives of networks.

Under `vmap`, torch 2.15 gets the second derivatives of batch, layer and instance normalisation wrong
without a warning: mean and variance count as constants. Here these layers are written as equations. Group
normalisation is already right. Attention's fused kernels have no second derivative; the plain one has.
"""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from inspect import Signature, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


def risk_gradients(
    network: nn.Module,
    names: Container[str],
    losses: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
) -> dict[str, Tensor]:
    """The gradients (E, *shape) of E mean losses in the named parameters, themselves differentiable.

    Batch normalisation uses separate statistics for each of the E inputs (B, ...).
    """
    parameters = {n: p for n, p in network.named_parameters() if n in names}
    buffers = {n: b.expand(len(x), *b.shape).clone() for n, b in network.named_buffers()}

    def risk(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        return losses(functional_call(network, {**parameters, **buffers}, (x,)), y).mean()

    each = vmap(grad(risk), in_dims=(None, 0, 0, 0), randomness="different")
    with twice_differentiable():
        gradients: dict[str, Tensor] = each(parameters, buffers, x, y)
    return gradients


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """A context in which gradients by `torch.func` can be differentiated again.

    Inside, batch normalisation does not update its running statistics.
    """
    with sdpa_kernel(SDPBackend.MATH), _NormsByEquation():
        yield


class _NormsByEquation(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function not in SIGNATURES:
            return function(*args, **(kwargs or {}))
        bound = SIGNATURES[function].bind(*args, **(kwargs or {}))
        bound.apply_defaults()
        given = bound.arguments
        x, weight, bias, eps = (given[name] for name in ("input", "weight", "bias", "eps"))
        if not given.get("training", given.get("use_input_stats", True)):
            mean, variance = given["running_mean"], given["running_var"]
            return functional.batch_norm(x, mean, variance, weight, bias, eps=eps)
        if function is functional.layer_norm:
            axes = [*range(-len(given["normalized_shape"]), 0)]
        else:
            axes = [*([0] if function is functional.batch_norm else []), *range(2, x.dim())]
            of_channels = (-1, *[1] * (x.dim() - 2))
            weight, bias = (v if v is None else v.view(of_channels) for v in (weight, bias))
        variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        scaled = (x - mean) * (variance + eps).rsqrt()
        if weight is not None:
            scaled = scaled * weight
        return scaled if bias is None else scaled + bias


SIGNATURES: dict[Any, Signature] = {
    norm: signature(norm)
    for norm in (functional.batch_norm, functional.instance_norm, functional.layer_norm)
}
"""The functions that are replaced, with the names of their arguments."""
