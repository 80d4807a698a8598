"""The gradients of one parameter for U units (environments or examples), kept as factors.

Each class holds what a layer's backward pass leaves behind. It gives either the stacked gradients (U,
*shape) or only the sum of their signs and their mean, (*shape) each, without ever holding the whole stack.
Autograd does not track these tensors.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

BLOCK = {"cpu": 2**18, "cuda": 2**27}
"""Elements of stacked gradients computed at once, by device type: on a CPU they stay in the cache."""


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

        With fewer distinct pairs the rest are pair 0 with gradient 0: to cut them off, the CPU would have
        to wait for the device to know their number.
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
