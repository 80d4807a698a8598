"""Stacked batches: the examples of every step, as a function of the seed and the step alone."""

from collections.abc import Sequence

import torch
from torch import Tensor

from oodbench.algorithms import Batch
from oodbench.seeds import derive


class Batches:
    """Endless batches of B examples from each of E environments, indexed by step.

    Each environment is gone through in random order, without replacement, an epoch after the
    other; the last examples of an epoch that do not fill a batch are left out. The data stay on
    their device as one tensor and a batch is one index selection. Nothing but the step is needed
    to go on where a run stopped.
    """

    def __init__(
        self, environments: Sequence[tuple[Tensor, Tensor]], batch_size: int, seed: int
    ) -> None:
        """`environments` holds (inputs, targets); `batch_size` 0 or too large: the smallest one's."""
        self.sizes = [len(x) for x, _ in environments]
        self.batch_size = min(batch_size or min(self.sizes), min(self.sizes))
        self._seed = seed
        self._x = torch.cat([x for x, _ in environments])
        self._y = torch.cat([y for _, y in environments])
        self._starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        self._orders: list[tuple[int, Tensor]] = [(-1, torch.empty(0))] * len(self.sizes)
        self._whole: Batch | None = None
        if all(size == self.batch_size for size in self.sizes):
            shape = (len(self.sizes), self.batch_size)
            self._whole = Batch(
                torch.unflatten(self._x, 0, shape), torch.unflatten(self._y, 0, shape)
            )

    def __getitem__(self, step: int) -> Batch:
        """The batch of `step`."""
        if self._whole is not None:
            return self._whole
        index = torch.stack([self._indices(e, step) for e in range(len(self.sizes))])
        flat = index.flatten().to(self._x.device)
        x, y = self._x.index_select(0, flat), self._y.index_select(0, flat)
        shape = (len(self.sizes), self.batch_size)
        return Batch(torch.unflatten(x, 0, shape), torch.unflatten(y, 0, shape))

    def _indices(self, environment: int, step: int) -> Tensor:
        """(B,) positions in the concatenated data."""
        size, batch_size = self.sizes[environment], self.batch_size
        epoch, position = divmod(step, size // batch_size)
        known, order = self._orders[environment]
        if known != epoch:
            seed = derive(self._seed, environment, epoch)
            order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
            order += self._starts[environment]
            self._orders[environment] = (epoch, order)
        return order[position * batch_size : (position + 1) * batch_size]
