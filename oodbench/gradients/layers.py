"""Gradients of U units (environments or examples) for each kind of layer.

A layer's function runs it on the examples of U units, with detached parameters. It returns the output and
its pullback, which maps the output's cotangent to every unit's gradient of each parameter: in closed form
for common layers, by `vmap` for any other. Dimension 0 of the input runs over examples, unit after unit.

The gradients of a parameter are kept as the factors that the backward pass leaves behind. They give either
the stacked gradients (U, *shape) or only the sum of their signs and their mean, (*shape) each, without ever
holding the whole stack. Autograd does not track these tensors.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.grad import conv2d_weight

from oodbench.networks.mlp import Scales

BLOCK = {"cpu": 2**18, "cuda": 2**27}
"""Elements of stacked gradients computed at once, by device type: on a CPU they stay in the cache."""
KERNEL_UNITS = {"cuda": 16}
"""The most units, by device type, for which torch's kernel computes a convolution's gradients unit by unit.
On a GPU it takes longer to unfold the inputs for one product over all units; on a CPU both are as fast."""


class Gradients(Protocol):
    """The gradients of one parameter for U units."""

    def stacked(self) -> Tensor:
        """The gradients of all units, (U, *shape)."""

    def signs(self) -> tuple[Tensor, Tensor]:
        """The sum over units of sign(gradient), with sign(0) = 0, and the mean gradient: (*shape) each."""


@dataclass(frozen=True)
class Dense:
    """Gradients stored in full: `values` (U, *shape)."""

    values: Tensor

    def stacked(self) -> Tensor:
        """The values as they are."""
        return self.values

    def signs(self) -> tuple[Tensor, Tensor]:
        """The sum of signs and the mean."""
        return self.values.sign().sum(0), self.values.mean(0)


@dataclass(frozen=True)
class OuterProducts:
    """Gradients of a weight matrix: `left` @ `right`' for each unit and group.

    `left` (U, G, O, K): cotangents of the O outputs in each of G groups at K positions. `right` (U, G, I,
    K): their inputs. `shape`: the parameter's shape, G * O * I elements.
    """

    left: Tensor
    right: Tensor
    shape: torch.Size

    def stacked(self) -> Tensor:
        """The gradients, by one batched product."""
        product = self.left @ self.right.transpose(2, 3)
        return product.view(len(self.left), *self.shape)

    def signs(self) -> tuple[Tensor, Tensor]:
        """The sum of signs and the mean: by two matrix products if G = K = 1, else block by block."""
        units, groups, outputs, positions = self.left.shape
        inputs = self.right.shape[2]
        # gradients are then outer products, and sign(a b) = sign(a) sign(b), also where a b underflows to 0
        if positions == 1 and groups == 1:
            left, right = self.left.view(units, -1), self.right.view(units, -1)
            mean = left.new_empty(outputs, inputs)
            torch.addmm(mean, left.T, right, beta=0, alpha=1 / units, out=mean)
            return (left.sign().T @ right.sign()).view(self.shape), mean.view(self.shape)
        net, mean = self.left.new_empty(2, groups, outputs, inputs).unbind()
        size = max(1, BLOCK.get(self.left.device.type, 2**27) // (units * inputs))
        for group in range(groups):
            left, right = self.left[:, group], self.right[:, group].mT
            _blocks(left, right, net[group], mean[group], min(size, outputs))
        return net.view(self.shape), mean.view(self.shape)


def _blocks(left: Tensor, right: Tensor, net: Tensor, mean: Tensor, size: int) -> None:
    # writes to `net` and `mean`; `size` of the O output rows are stacked at once
    units, outputs, inputs = len(left), left.shape[1], right.shape[2]
    buffer = left.new_empty(units * size * inputs)
    for start in range(0, outputs, size):
        rows = left[:, start : start + size]
        block = buffer[: units * rows.shape[1] * inputs].view(units, rows.shape[1], inputs)
        torch.baddbmm(block, rows, right, beta=0, alpha=1 / units, out=block)
        torch.sum(block, 0, out=mean[start : start + size])
        torch.sum(block.sign_(), 0, out=net[start : start + size])


@dataclass(frozen=True)
class LookedUpRows:
    """Gradients of an embedding table (V, D) by the rows that each unit looked up.

    `cotangents` (U, K, D): one for each look-up. `rows` (U, K): row numbers below V. `shape`: (V, D).
    """

    cotangents: Tensor
    rows: Tensor
    shape: torch.Size

    def _sums(self) -> tuple[Tensor, Tensor]:
        """The distinct (unit, row) pairs as unit * V + row, (U * K,), and their gradients (U * K, D).

        If there are fewer distinct pairs, the remaining entries are pair 0 with gradient 0: to cut them
        off, the CPU would have to wait for the device to learn their number.
        """
        units = torch.arange(len(self.rows), device=self.rows.device)
        looked_up = (units[:, None] * self.shape[0] + self.rows).flatten()
        ordered, order = looked_up.sort(stable=True)
        slot = (ordered.diff(prepend=ordered[:1]) > 0).cumsum(0)  # equal pairs share a slot
        pairs = torch.zeros_like(ordered).scatter_(0, slot, ordered)
        sums = self.cotangents.new_zeros(len(pairs), self.shape[1])
        return pairs, sums.index_add_(0, slot, self.cotangents.flatten(0, 1)[order])

    def stacked(self) -> Tensor:
        """The gradients; zero in rows that a unit did not look up."""
        pairs, sums = self._sums()
        stack = sums.new_zeros(len(self.rows) * self.shape[0], self.shape[1])
        return stack.index_add_(0, pairs, sums).view(len(self.rows), *self.shape)

    def signs(self) -> tuple[Tensor, Tensor]:
        """The sum of signs and the mean, summed over look-ups only."""
        pairs, sums = self._sums()
        rows = pairs % self.shape[0]
        net = sums.new_zeros(self.shape).index_add_(0, rows, sums.sign())
        mean = sums.new_zeros(self.shape).index_add_(0, rows, sums)
        return net, mean / len(self.rows)


def add(first: Gradients, second: Gradients) -> Gradients:
    """The sum of the gradients from two uses of one parameter."""
    if isinstance(first, OuterProducts) and isinstance(second, OuterProducts):
        if first.left.shape[:3] == second.left.shape[:3]:
            left = torch.cat([first.left, second.left], 3)
            return OuterProducts(left, torch.cat([first.right, second.right], 3), first.shape)
    return Dense(first.stacked() + second.stacked())


Pullback = Callable[[Tensor], Mapping[Tensor, Gradients]]
RunLayer = Callable[[Any, Tensor, int, str], tuple[Tensor, Pullback]]


def layers(network: nn.Module) -> Iterator[tuple[nn.Module, RunLayer]]:
    """Yield the layers of a network, each with the function that runs it.

    A module that holds parameters itself and has no function here is one layer with all its children, run
    by `any_layer`.
    """
    run = _run_of(network)
    if run is not None:
        yield network, run
    elif any(p is not None and p.requires_grad for p in network._parameters.values()):
        yield network, any_layer
    else:
        for child in dict.fromkeys(network.children()):
            yield from layers(child)


def _run_of(module: nn.Module) -> RunLayer | None:
    kind = type(module)  # by exact type, as a subclass may compute something else
    if kind is nn.Conv2d and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
        return None
    if kind is nn.Embedding and (
        module.max_norm is not None or module.scale_grad_by_freq or module.sparse
    ):
        return None
    return _KNOWN.get(kind)


def _fixed(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()


def _trained(
    *gradients: tuple[Tensor | None, Callable[[], Gradients]],
) -> Mapping[Tensor, Gradients]:
    return {p: make() for p, make in gradients if p is not None and p.requires_grad}


def _linear(module: nn.Linear, x: Tensor, units: int, batch_norm: str) -> tuple[Tensor, Pullback]:
    seen, weight = x.detach(), module.weight

    def pullback(cotangent: Tensor) -> Mapping[Tensor, Gradients]:
        left = cotangent.reshape(units, -1, module.out_features)

        def outer() -> Gradients:
            right = seen.to(weight.dtype).reshape(units, -1, module.in_features)
            return OuterProducts(left.mT.unsqueeze(1), right.mT.unsqueeze(1), weight.shape)

        by_unit = left.sum(1) if left.shape[1] > 1 else left[:, 0]
        return _trained((weight, outer), (module.bias, lambda: Dense(by_unit)))

    return F.linear(x, module.weight.detach(), _fixed(module.bias)), pullback


def _conv2d(module: nn.Conv2d, x: Tensor, units: int, batch_norm: str) -> tuple[Tensor, Pullback]:
    # on unfolded inputs a convolution is a linear layer at every position
    seen, groups = x.detach(), module.groups
    options: Any = (module.stride, module.padding, module.dilation, groups)
    weight_gradient: Any = conv2d_weight

    def by_unit(columns: Tensor) -> Tensor:
        # (U * B, C, L) to (U, G, C / G, B * L)
        shape = (units, -1, groups, columns.shape[1] // groups, columns.shape[2])
        return columns.reshape(shape).permute(0, 2, 3, 1, 4).flatten(3)

    def weight(cotangent: Tensor) -> Gradients:
        if units <= KERNEL_UNITS.get(x.device.type, 0):
            rows = zip(seen.to(cotangent.dtype).chunk(units), cotangent.chunk(units), strict=True)
            shape = module.weight.shape
            return Dense(torch.stack([weight_gradient(x, shape, c, *options) for x, c in rows]))
        kernel: Any = (module.kernel_size, module.dilation, module.padding, module.stride)
        right = by_unit(F.unfold(seen.to(cotangent.dtype), *kernel))
        return OuterProducts(by_unit(cotangent.flatten(2)), right, module.weight.shape)

    def pullback(cotangent: Tensor) -> Mapping[Tensor, Gradients]:
        return _trained(
            (module.weight, lambda: weight(cotangent)),
            (module.bias, lambda: Dense(_sum(cotangent.flatten(2), units))),
        )

    return F.conv2d(x, module.weight.detach(), _fixed(module.bias), *options), pullback


def _sum(values: Tensor, units: int) -> Tensor:
    values = torch.unflatten(values, 0, (units, -1))
    return values.sum([d for d in range(1, values.dim()) if d != 2])


def _scale(module: Any, x: Tensor, units: int, *_: str) -> tuple[Tensor, Pullback]:
    # multiply each channel by its weight, and add its bias
    weight, bias = module.weight, getattr(module, "bias", None)
    if weight is None:
        return x, lambda cotangent: {}
    seen, shape = x.detach(), (1, -1, *[1] * (x.dim() - 2))

    def pullback(cotangent: Tensor) -> Mapping[Tensor, Gradients]:
        return _trained(
            (weight, lambda: Dense(_sum(cotangent * seen, units))),
            (bias, lambda: Dense(_sum(cotangent, units))),
        )

    factor = weight.detach().view(shape)
    if bias is None:
        return x * factor, pullback
    return torch.addcmul(bias.detach().view(shape), x, factor), pullback


def _batch_norm(module: Any, x: Tensor, units: int, batch_norm: str) -> tuple[Tensor, Pullback]:
    # in training mode by the statistics that `batch_norm` names, see `gradients.backward`
    if not (module.training or module.running_mean is None):
        normalized = F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
    elif batch_norm in ("environment", "rows"):
        normalized = _by_own_statistics(module, x, units if batch_norm == "environment" else 1)
    else:
        dims = [d for d in range(x.dim()) if d != 1]
        variance, mean = _moments(x, dims)
        _remember(module, mean[None], variance[None], x.numel() // x.shape[1])
        normalized = F.batch_norm(x, mean, variance, eps=module.eps)
    return _scale(module, normalized, units)


def _moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    x = x.detach()  # at least in float32, as in torch's batch normalisation
    variance, mean = torch.var_mean(x if x.itemsize >= 4 else x.float(), dims, correction=0)
    return variance, mean


def _by_own_statistics(module: Any, x: Tensor, units: int) -> Tensor:
    rows = torch.unflatten(x, 0, (units, -1)).transpose(0, 1)  # (B, U, C, ...)
    if rows.numel() == rows.shape[1] * rows.shape[2]:
        raise ValueError("batch normalisation needs more than one value per channel and unit")
    # every channel of every unit becomes a channel, so that one call of torch's kernel does all
    folded = rows.flatten(1, 2)
    dims = [d for d in range(folded.dim()) if d != 1]
    variance, mean = _moments(folded, dims)
    shape = (units, x.shape[1])
    _remember(module, mean.view(shape), variance.view(shape), folded.numel() // folded.shape[1])
    normalized = F.batch_norm(folded, None, None, training=True, eps=module.eps)
    return normalized.view(rows.shape).transpose(0, 1).flatten(0, 1)


@torch.no_grad()
def _remember(module: Any, means: Tensor, variances: Tensor, count: int) -> None:
    # moments (passes, C): the running statistics change as they would in one forward pass after the other
    if not module.training or module.running_mean is None:
        return
    for mean, variance in zip(means, variances * (count / max(count - 1, 1)), strict=True):
        module.num_batches_tracked.add_(1)
        momentum = module.momentum
        if momentum is None:
            momentum = 1 / float(module.num_batches_tracked)
        module.running_mean.lerp_(mean, momentum)
        module.running_var.lerp_(variance, momentum)


def _group_norm(
    module: nn.GroupNorm, x: Tensor, units: int, batch_norm: str
) -> tuple[Tensor, Pullback]:
    return _scale(module, F.group_norm(x, module.num_groups, eps=module.eps), units)


def _layer_norm(
    module: nn.LayerNorm, x: Tensor, units: int, batch_norm: str
) -> tuple[Tensor, Pullback]:
    normalized = F.layer_norm(x, module.normalized_shape, eps=module.eps)
    seen, row = normalized.detach(), (units, -1, *module.normalized_shape)

    def pullback(cotangent: Tensor) -> Mapping[Tensor, Gradients]:
        return _trained(
            (module.weight, lambda: Dense((cotangent * seen).reshape(row).sum(1))),
            (module.bias, lambda: Dense(cotangent.reshape(row).sum(1))),
        )

    if module.weight is not None:
        normalized = normalized * module.weight.detach()
    if module.bias is not None:
        normalized = normalized + module.bias.detach()
    return normalized, pullback


def _embedding(
    module: nn.Embedding, x: Tensor, units: int, batch_norm: str
) -> tuple[Tensor, Pullback]:
    def pullback(cotangent: Tensor) -> Mapping[Tensor, Gradients]:
        if module.padding_idx is not None:  # that row has no gradient
            cotangent = cotangent * (x != module.padding_idx).unsqueeze(-1)
        values = cotangent.reshape(units, -1, module.embedding_dim)
        rows = x.reshape(units, -1)
        return _trained((module.weight, lambda: LookedUpRows(values, rows, module.weight.shape)))

    return F.embedding(x, module.weight.detach(), module.padding_idx), pullback


def any_layer(module: nn.Module, x: Tensor, units: int, batch_norm: str) -> tuple[Tensor, Pullback]:
    """Run any layer from one tensor to another; `torch.func` computes the units' gradients.

    The layer must be deterministic and keep units apart: the gradients come from a second forward pass.
    """
    module = copy(module)
    # the replacement by `backward.taps`, which would call this function again
    module.__dict__.pop("forward", None)
    fixed = {name: p.detach() for name, p in module.named_parameters()}
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    seen = x.detach()
    if seen.is_floating_point() and fixed:
        seen = seen.to(next(iter(fixed.values())).dtype)

    def of_one(x: Tensor, cotangent: Tensor) -> Any:
        def run(parameters: dict[str, Tensor]) -> Tensor:
            output: Tensor = functional_call(module, fixed | parameters, (x,))
            return output

        pull = vjp(run, {name: fixed[name] for name in trained})[1]
        return pull(cotangent)[0]

    def pullback(cotangent: Tensor) -> Mapping[Tensor, Gradients]:
        split = (torch.unflatten(values, 0, (units, -1)) for values in (seen, cotangent))
        stacks = vmap(of_one)(*split)
        return {p: Dense(stacks[name]) for name, p in trained.items()}

    return functional_call(module, fixed, (x,)), pullback


_KNOWN: dict[type[nn.Module], RunLayer] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    Scales: _scale,
}
