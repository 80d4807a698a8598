"""Linear layers of K runs as one product, gradients of environments' risks, and remainders.

Under `vmap` over the parameters of many runs, a linear layer is a batched matrix product. Here the product
is on columns, so that the values of an input for all examples are side by side in memory. For narrow layers
on a CPU, this is several times as fast as torch's product on rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from oodbench.gradients.backward import Root, replaced_forwards

Combine = Callable[[Tensor], Tensor]
FUNCTIONS = frozenset(
    {"sigmoid", "softplus", "softplus_backward", "silu", "silu_backward", "elu", "elu_backward"}
    | {"mish", "mish_backward", "exp2", "pow", "atan2", "logaddexp"}
)
"""Elementwise functions that round the last elements of a tensor differently (torch 2.4 to 2.9)."""
EXACT_POWERS = (0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0)
"""The exponents for which `pow` rounds all elements alike."""
ELEMENTS = 16
"""The number of elements that these functions compute at once: two vectors of eight."""
SUMS = frozenset({"sum", "mean"})
COLUMNS = 32
"""The number of columns that a sum over rows computes at once: four vectors of eight."""


class Collector:
    """Collects the gradients of E environments' risks from all layers, and combines them."""

    def __init__(self, environments: int, combine: Combine, anchor: Tensor) -> None:
        """`combine` maps (K, E, *shape) to (K, *shape); `anchor` is any tensor that requires a gradient."""
        self.environments = environments
        self.anchor = anchor
        self._stacks: dict[Tensor, Tensor] = {}
        self._combine = combine

    def take(self, module: nn.Linear, seen: Tensor, cotangent: Tensor) -> None:
        """Add a layer's gradients, given inputs `seen` (K, I, E * B) and `cotangent` (K, O, E * B)."""
        left, right = (
            torch.unflatten(t, 2, (self.environments, -1)).transpose(1, 2)
            for t in (cotangent, seen)
        )
        self._add(module.weight, lambda: left @ right.mT)
        self._add(module.bias, lambda: left.sum(3))

    def _add(self, parameter: Tensor | None, make: Callable[[], Tensor]) -> None:
        if parameter is None or not parameter.requires_grad:
            return
        made = make()
        if parameter in self._stacks:  # the layer is used more than once
            made = self._stacks[parameter] + made
        self._stacks[parameter] = made

    def combined(self) -> dict[Tensor, Tensor]:
        """The combined gradient of each parameter, (K, *shape), after the backward pass."""
        return {parameter: self._combine(stack) for parameter, stack in self._stacks.items()}


class _Tapped(torch.autograd.Function):
    """The layer x W' + b with constant parameters under `vmap`; `give` gets its columns, see `_forward`."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, give: Any) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: autograd differentiates the operations in `vmap`."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        x: Any,
        weight: Any,
        bias: Any,
        give: Callable[[Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, int]:
        """The layer of K runs: inputs (K, ..., I), weights (K, O, I), biases (K, O)."""
        batched = []
        for tensor, dim in zip((x, weight, bias), in_dims, strict=False):
            if tensor is not None and dim is None:
                tensor = tensor.expand(info.batch_size, *tensor.shape)
            batched.append(tensor.movedim(dim, 0) if tensor is not None and dim else tensor)
        x, weight, bias = batched
        shape = x.shape
        columns = x.flatten(1, -2).mT
        weight = weight.detach()
        if bias is None:
            out = weight @ columns
        else:
            out = torch.baddbmm(bias.detach().unsqueeze(2), weight, columns)
        return torch.unflatten(give(columns.detach(), out).mT, 1, shape[1:-1]), 0


def vectorized_linear(
    network: nn.Module, collector: Collector | None = None
) -> AbstractContextManager[None]:
    """Within the block, the linear layers of `network` run on columns, under a single `vmap`.

    With a collector, their parameters are constants for autograd, and the collector takes their gradients.
    """
    layers: list[Any] = [m for m in network.modules() if type(m) is nn.Linear]
    return replaced_forwards({module: _forward(module, collector) for module in layers})


def _forward(module: nn.Linear, collector: Collector | None) -> Callable[[Tensor], Tensor]:
    def plain(x: Tensor) -> Tensor:
        out = module.weight @ x.flatten(0, -2).mT
        if module.bias is not None:
            out = out + module.bias.unsqueeze(1)
        return torch.unflatten(out.mT, 0, x.shape[:-1])

    def give(columns: Tensor, out: Tensor) -> Tensor:
        assert collector is not None
        if not out.requires_grad:
            out = Root.apply(out, collector.anchor)
        hooked: Any = out
        hooked.register_hook(lambda cotangent: collector.take(module, columns, cotangent))
        return out

    def tapped(x: Tensor) -> Tensor:
        result: Tensor = _Tapped.apply(x, module.weight, module.bias, give)
        return result

    trained = collector is not None and any(p.requires_grad for p in module.parameters())
    return tapped if trained else plain


class Remainders(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within its block, watches the operations of a program of `runs` runs.

    On a CPU, torch computes most of a tensor by vector instructions, and the last few elements, the
    remainder, one by one. A few functions round remainders differently, and so do sums over rows for the
    last columns. Which elements these are depends on how many runs share the tensor. A program of a
    `multiple` of runs has no remainders.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch's compiler takes a second to import

    def __init__(self, runs: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._runs = runs
        self.multiple = 1
        """The runs of a program must be a multiple of this number."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.numel() % self._runs == 0:
            width = _at_once(func.overloadpacket.__name__.removesuffix("_"), args)
            of_run = out.numel() // self._runs
            self.multiple = math.lcm(self.multiple, width // math.gcd(width, of_run))
        return out


def _at_once(name: str, args: Sequence[Any]) -> int:
    # the number of elements that an operation computes at once if it rounds remainders differently, else 1
    if name in FUNCTIONS:
        power = args[1] if name == "pow" and args[1:] else None
        return 1 if isinstance(power, int | float) and power in EXACT_POWERS else ELEMENTS
    if name not in SUMS or len(args) < 2:
        return 1
    x, dims = args[0], {d % args[0].dim() for d in args[1] or ()}
    long = {d: x.stride(d) for d in range(x.dim()) if x.shape[d] > 1 and x.stride(d) > 0}
    outermost = max(long, key=lambda d: long[d], default=None)
    return COLUMNS if outermost in dims and len(long) > len(dims & long.keys()) else 1
