"""Correct second derivatives of networks.

Under `vmap` torch 2.15 gets the second derivative of batch, layer and instance normalisation wrong: it
silently treats mean and variance as constants. Written as equations, these layers are differentiated
correctly. Group normalisation is correct as it is. Attention's fused kernels have no second derivative.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
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

    Each of the inputs (E, B, ...) has its statistics of batch normalisation.
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

    Batch normalisation does not update its running statistics in it.
    """
    with sdpa_kernel(SDPBackend.MATH), _NormsByEquation():
        yield


class _NormsByEquation(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return EQUATIONS.get(function, function)(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        fixed = (running_mean, running_var, weight, bias, training, momentum, eps)
        return functional.batch_norm(x, *fixed)
    return _of_channels(x, [0, *range(2, x.dim())], weight, bias, eps)


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return _batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    return _of_channels(x, range(2, x.dim()), weight, bias, eps)


def _of_channels(
    x: Tensor, axes: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    each = (-1, *[1] * (x.dim() - 2))
    by_channel = [None if values is None else values.view(each) for values in (weight, bias)]
    return _normalised(x, axes, by_channel[0], by_channel[1], eps)


def _layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _normalised(x, range(-len(normalized_shape), 0), weight, bias, eps)


def _normalised(
    x: Tensor, axes: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    variance, mean = torch.var_mean(x, list(axes), correction=0, keepdim=True)
    scaled = (x - mean) * (variance + eps).rsqrt()
    if weight is not None:
        scaled = scaled * weight
    return scaled if bias is None else scaled + bias


EQUATIONS: dict[Any, Callable[..., Tensor]] = {
    functional.batch_norm: _batch_norm,
    functional.instance_norm: _instance_norm,
    functional.layer_norm: _layer_norm,
}
"""torch's functions, and the equations that replace them."""
