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
"""Elements of a stack that are made at once, by kind of device: on a CPU they stay in its cache."""


class Gradients(Protocol):
    """The gradients of one parameter for U units."""

    def stacked(self) -> Tensor:
        """The gradients, (U, *shape)."""

    def signs(self) -> tuple[Tensor, Tensor]:
        """The sum over units of the gradients' signs, sign(0) = 0, and their mean; (*shape) each."""


@dataclass(frozen=True)
class Stack:
    """Gradients that are small enough to be at hand, (U, *shape)."""

    values: Tensor

    def stacked(self) -> Tensor:
        """As they are."""
        return self.values

    def signs(self) -> tuple[Tensor, Tensor]:
        """By their definition."""
        return self.values.sign().sum(0), self.values.mean(0)


@dataclass(frozen=True)
class Product:
    """Gradients of a weight matrix: for each unit and group, `left` times `right` transposed.

    `left` (U, G, O, K) holds the cotangents of the O outputs of each of G groups at K positions,
    `right` (U, G, I, K) what those outputs saw; `shape` is the parameter's, of G * O * I elements.
    """

    left: Tensor
    right: Tensor
    shape: torch.Size

    def stacked(self) -> Tensor:
        """One batched product."""
        product = self.left @ self.right.transpose(2, 3)
        return product.view(len(self.left), *self.shape)

    def signs(self) -> tuple[Tensor, Tensor]:
        """Without the stack at a single position (K = 1), else by blocks of outputs.

        At one position a unit's gradient is an outer product, so that the sum of the signs is
        sign(left)' sign(right): one more matrix product of the size of the mean's own. (A product
        of two numbers that underflows to zero keeps its sign here.)
        """
        if self.left.shape[3] == 1:
            return self._signs_of_outer_products()
        units, groups, outputs, _ = self.left.shape
        inputs = self.right.shape[2]
        net, mean = self.left.new_empty(2, groups, outputs, inputs).unbind()
        rows = max(1, BLOCK.get(self.left.device.type, 2**27) // (units * inputs))
        buffer = self.left.new_empty(units * min(rows, outputs) * inputs)
        for group in range(groups):
            right = self.right[:, group].transpose(1, 2)
            for start in range(0, outputs, rows):
                left = self.left[:, group, start : start + rows]
                size = units * left.shape[1] * inputs
                block = buffer[:size].view(units, left.shape[1], inputs)
                torch.bmm(left, right, out=block)
                torch.mean(block, 0, out=mean[group, start : start + rows])
                torch.sum(block.sign_(), 0, out=net[group, start : start + rows])
        return net.view(self.shape), mean.view(self.shape)

    def _signs_of_outer_products(self) -> tuple[Tensor, Tensor]:
        left, right = self.left.squeeze(3).permute(1, 2, 0), self.right.squeeze(3).transpose(0, 1)
        net, mean = left.sign() @ right.sign(), (left @ right) / len(self.left)
        return net.view(self.shape), mean.view(self.shape)


@dataclass(frozen=True)
class Rows:
    """Gradients of a table whose rows are looked up: the cotangent of each looked-up row.

    `cotangents` is (U, K, D), `rows` (U, K) says which of the table's V rows each was, and `shape`
    is the table's, (V, D).
    """

    cotangents: Tensor
    rows: Tensor
    shape: torch.Size

    def _sums(self) -> tuple[Tensor, Tensor]:
        """Each pair of a unit and a row that occurs, as unit * V + row (P,), and its gradient (P, D)."""
        units = torch.arange(len(self.rows), device=self.rows.device)
        pairs, inverse = (units[:, None] * self.shape[0] + self.rows).unique(return_inverse=True)
        sums = self.cotangents.new_zeros(len(pairs), self.shape[1])
        return pairs, sums.index_add_(0, inverse.flatten(), self.cotangents.flatten(0, 1))

    def stacked(self) -> Tensor:
        """With zeros for the rows that a unit did not look up."""
        pairs, sums = self._sums()
        stack = sums.new_zeros(len(self.rows) * self.shape[0], self.shape[1])
        return stack.index_copy_(0, pairs, sums).view(len(self.rows), *self.shape)

    def signs(self) -> tuple[Tensor, Tensor]:
        """Over the rows that were looked up alone."""
        pairs, sums = self._sums()
        rows = pairs % self.shape[0]
        net = sums.new_zeros(self.shape).index_add_(0, rows, sums.sign())
        mean = sums.new_zeros(self.shape).index_add_(0, rows, sums)
        return net, mean / len(self.rows)


def add(first: Gradients, second: Gradients) -> Gradients:
    """The gradients of a parameter that is used twice."""
    if isinstance(first, Product) and isinstance(second, Product):
        if first.left.shape[:3] == second.left.shape[:3]:
            left = torch.cat([first.left, second.left], 3)
            return Product(left, torch.cat([first.right, second.right], 3), first.shape)
    return Stack(first.stacked() + second.stacked())
