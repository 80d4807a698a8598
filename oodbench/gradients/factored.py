"""The gradients of one parameter for U units (environments or examples), in their layer's own form.

Each class holds what a layer's backward pass leaves behind and answers two questions: the stacked
gradients, (U, *shape), or only the sum of their signs and their mean, (*shape) each, for which
the stack is never whole in memory. Nothing here tracks gradients itself.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

BLOCK = {"cpu": 2**18, "cuda": 2**27}
"""The most elements of stacked gradients that are computed at once, by kind of device: on a CPU they
stay in its cache."""


class Gradients(Protocol):
    """The gradients of one parameter for U units."""

    def stacked(self) -> Tensor:
        """The gradients of all units, (U, *shape)."""

    def signs(self) -> tuple[Tensor, Tensor]:
        """The sum over units of sign(gradient), where sign(0) = 0, and the units' mean gradient.

        Both are (*shape).
        """


@dataclass(frozen=True)
class Dense:
    """Gradients stored in full: `values` (U, *shape)."""

    values: Tensor

    def stacked(self) -> Tensor:
        """The values themselves."""
        return self.values

    def signs(self) -> tuple[Tensor, Tensor]:
        """The sum over units of sign(gradient), and the mean, computed directly."""
        return self.values.sign().sum(0), self.values.mean(0)


@dataclass(frozen=True)
class OuterProducts:
    """Gradients of a weight matrix: for each unit and group, `left` times `right` transposed.

    `left` (U, G, O, K) holds the cotangents of the O outputs of each of G groups at K positions,
    `right` (U, G, I, K) the inputs of those outputs; `shape` is the parameter's, of G * O * I elements.
    """

    left: Tensor
    right: Tensor
    shape: torch.Size

    def stacked(self) -> Tensor:
        """The gradients, computed as one batched product."""
        product = self.left @ self.right.transpose(2, 3)
        return product.view(len(self.left), *self.shape)

    def signs(self) -> tuple[Tensor, Tensor]:
        """Compute sums and means without stacked gradients at one position (K = 1), else by blocks.

        At one position a unit's gradient is an outer product, so that the sum of the signs is
        sign(left)' sign(right): one more matrix product of the size of the mean's own. (A product
        of two numbers that underflows to zero keeps its sign here.)
        """
        units, groups, outputs, positions = self.left.shape
        inputs = self.right.shape[2]
        if positions == 1 and groups == 1:
            net, mean = _outer_products(self.left.view(units, -1), self.right.view(units, -1))
            return net.view(self.shape), mean.view(self.shape)
        net, mean = self.left.new_empty(2, groups, outputs, inputs).unbind()
        size = max(1, BLOCK.get(self.left.device.type, 2**27) // (units * inputs))
        for group in range(groups):
            left, right = self.left[:, group], self.right[:, group].mT
            _blocks(left, right, net[group], mean[group], min(size, outputs))
        return net.view(self.shape), mean.view(self.shape)


def _outer_products(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of signs and mean, both (O, I), of the outer products of U rows of (U, O) and (U, I)."""
    mean = left.new_empty(left.shape[1], right.shape[1])
    torch.addmm(mean, left.T, right, beta=0, alpha=1 / len(left), out=mean)
    return left.sign().T @ right.sign(), mean


def _blocks(left: Tensor, right: Tensor, net: Tensor, mean: Tensor, size: int) -> None:
    """Write the sum of signs and the mean of (U, O, K) times (U, K, I), `size` of the O rows at once."""
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
    """Gradients of a table whose rows are looked up: the cotangent of each looked-up row.

    `cotangents` is (U, K, D), `rows` (U, K) the numbers of the looked-up rows among the table's V, and
    `shape` is the table's, (V, D).
    """

    cotangents: Tensor
    rows: Tensor
    shape: torch.Size

    def _sums(self) -> tuple[Tensor, Tensor]:
        """The pairs (U * K,) of a unit and a row that it looked up, and each pair's gradient (U * K, D).

        A pair is the number unit * V + row. Where there are fewer different pairs the rest are 0, with
        a gradient of 0: reading their number would make the CPU wait for the device.
        """
        units = torch.arange(len(self.rows), device=self.rows.device)
        looked_up = (units[:, None] * self.shape[0] + self.rows).flatten()
        ordered, order = looked_up.sort(stable=True)
        place = (ordered.diff(prepend=ordered[:1]) > 0).cumsum(0)  # of each one's pair
        pairs = torch.zeros_like(ordered).scatter_(0, place, ordered)
        sums = self.cotangents.new_zeros(len(pairs), self.shape[1])
        return pairs, sums.index_add_(0, place, self.cotangents.flatten(0, 1)[order])

    def stacked(self) -> Tensor:
        """The gradients, with zeros for the rows that a unit did not look up."""
        pairs, sums = self._sums()
        stack = sums.new_zeros(len(self.rows) * self.shape[0], self.shape[1])
        return stack.index_add_(0, pairs, sums).view(len(self.rows), *self.shape)

    def signs(self) -> tuple[Tensor, Tensor]:
        """Compute sums and means over only the rows that a unit looked up; all others are zero."""
        pairs, sums = self._sums()
        rows = pairs % self.shape[0]
        net = sums.new_zeros(self.shape).index_add_(0, rows, sums.sign())
        mean = sums.new_zeros(self.shape).index_add_(0, rows, sums)
        return net, mean / len(self.rows)


def add(first: Gradients, second: Gradients) -> Gradients:
    """The sum of two gradients of one parameter, which its network uses twice."""
    if isinstance(first, OuterProducts) and isinstance(second, OuterProducts):
        if first.left.shape[:3] == second.left.shape[:3]:
            left = torch.cat([first.left, second.left], 3)
            return OuterProducts(left, torch.cat([first.right, second.right], 3), first.shape)
    return Dense(first.stacked() + second.stacked())
