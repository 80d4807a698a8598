"""How many runs a program has to hold so that no run's bits depend on its place in memory.

On a CPU torch computes most of a tensor with vector instructions and the last few elements without. A few
functions round differently there, as do sums over rows for the last columns. Which elements are the last
depends on how many runs share the tensor; a program whose tensors leave no remainder has none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FUNCTIONS = frozenset(
    {"sigmoid", "softplus", "softplus_backward", "silu", "silu_backward", "elu", "elu_backward"}
    | {"mish", "mish_backward", "exp2", "pow", "atan2", "logaddexp"}
)
"""The functions of single elements that round the last ones of a tensor differently (torch 2.4 to 2.9)."""
EXACT_POWERS = (0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0)
"""The exponents for which `pow` is another function, which rounds all elements alike."""
ELEMENTS = 16
"""The elements that such a function computes at once: two vectors of eight."""
SUMS = frozenset({"sum", "mean"})
COLUMNS = 32
"""The columns that a sum over rows computes at once: four vectors of eight."""


class Remainders(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks, within its block, at the operations of a program of `runs` runs."""

    def __init__(self, runs: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._runs = runs
        self.multiple = 1
        """A program with a multiple of this many runs leaves no remainders."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do an operation, and take note of its remainder."""
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.numel() % self._runs == 0:
            width = _at_once(func.overloadpacket.__name__.removesuffix("_"), args)
            of_run = out.numel() // self._runs
            self.multiple = math.lcm(self.multiple, width // math.gcd(width, of_run))
        return out


def _at_once(name: str, args: Sequence[Any]) -> int:
    """Return how many elements an operation computes at once if the last ones differ, else 1."""
    if name in FUNCTIONS:
        power = args[1] if name == "pow" and args[1:] else None
        return 1 if isinstance(power, int | float) and power in EXACT_POWERS else ELEMENTS
    if name not in SUMS or len(args) < 2:
        return 1
    x, dims = args[0], {d % args[0].dim() for d in args[1] or ()}
    long = {d: x.stride(d) for d in range(x.dim()) if x.shape[d] > 1 and x.stride(d) > 0}
    outermost = max(long, key=lambda d: long[d], default=None)
    return COLUMNS if outermost in dims and len(long) > len(dims & long.keys()) else 1
