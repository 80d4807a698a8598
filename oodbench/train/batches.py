"""Stacked batches, each a function of the seed and the step alone."""

import math
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oodbench.algorithms import Batch
from oodbench.data.streams import ReadAhead, Request, Stored, to_device
from oodbench.seeds import derive

TOGETHER, VALUES = 32, 2**20
"""The most steps selected at once, and about the most input values of an environment in these steps."""


class Examples(NamedTuple):
    """The training examples of an environment."""

    x: Tensor | Stored
    """Inputs; those in memory may include other examples' rows."""
    y: Tensor
    """Targets, (N, ...)."""
    rows: Tensor | None = None
    """The examples' rows (N,) among inputs in memory; None: all."""
    attributes: Tensor | None = None
    """(N,), if batches hold them."""
    labels: Tensor | None = None
    """(N,), if batches are balanced by them."""


class Batches:
    """Endless batches of B examples from each of E environments, indexed by step.

    The examples of an environment come in random order without replacement, epoch after epoch. The last
    examples of an epoch are left out if they do not fill a batch, unless `repeat`. A resumed run needs the
    step alone: nothing else has to be restored. From data in memory, the examples of several steps are
    selected at once; stored data are read ahead.
    """

    def __init__(
        self,
        environments: Sequence[Examples],
        batch_size: int,
        seed: int,
        *,
        transform: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        environments_at: Callable[[int], Sequence[int]] | None = None,
        repeat: bool = False,
        end: int = sys.maxsize,
        loader_workers: int = 0,
        indexed: bool = False,
        subsampled: bool = False,
        views: int = 0,
    ) -> None:
        """Take the examples of each environment, with inputs all in memory or all stored.

        A `batch_size` of 0, or above the size of the smallest environment, means that size. With `repeat`,
        batches may be larger than an environment and continue with its next epoch. `environments_at` gives
        the environments of a step, by default all. No step after `end` is read ahead. `transform` gets a
        batch's inputs and a generator for the step. Batches hold their examples' indices if `indexed`, and
        `views` further views of each input. Labels, if any, are drawn equally often, with replacement; if
        `subsampled`, an environment instead keeps as many examples of each label as its rarest label has.
        """
        self._environments, self._views = environments, views
        labels = [e.labels.cpu() for e in environments if e.labels is not None]
        self._labels = [] if subsampled else labels
        generators = [_generator(seed, "subsample", e) for e in range(len(labels))]
        self._kept = [*map(subsample, labels, generators)] if subsampled else []
        self.sizes = [*map(len, self._kept or (e.y for e in environments))]
        limit = max(self.sizes) if repeat and batch_size else min(self.sizes)
        self.batch_size = min(batch_size or limit, limit)
        self._repeat = repeat
        self._seed = seed
        self._transform = transform
        self._environments_at = environments_at or (lambda step: range(len(self.sizes)))
        self._indexed, self._device = indexed, environments[0].y.device
        self._absences = [array("q") for _ in self.sizes]
        """For each environment, the steps before `_counted` without it."""
        self._counted = 0
        self._order = lru_cache(maxsize=2 * len(self.sizes))(self._drawn_order)
        self._whole: Batch | None = None
        self._stored = [e.x for e in environments if isinstance(e.x, Stored)]
        of_step = self.batch_size * math.prod(environments[0].x.shape[1:])
        self._together = max(1, min(TOGETHER, VALUES // max(1, of_step)))
        self._block = lru_cache(maxsize=len(self.sizes))(self._selected_block)
        if self._stored:
            finish = self._transformed if self._device.type == "cpu" else (lambda x, step: x)
            self._reads = ReadAhead(self._request, end, self._device, loader_workers, finish)
        elif not labels and all(size == self.batch_size for size in self.sizes):
            every = torch.arange(self.batch_size)
            self._whole = _stacked([self._examples(e, every) for e in range(len(self.sizes))], {})

    @property
    def stored(self) -> bool:
        """Whether the inputs are read from disk as they are needed."""
        return bool(self._stored)

    @property
    def waiting_seconds(self) -> float:
        """Seconds spent waiting for stored data so far."""
        return self._reads.seconds if self._stored else 0.0

    def __getitem__(self, step: int) -> Batch:
        environments = list(self._environments_at(step))
        batch = self._whole
        if batch is None:
            batch = self._selected(environments, step)
        elif len(environments) < len(self.sizes):
            batch = batch.of(environments)
        x = batch.x
        if not (self._stored and batch.y.device.type == "cpu"):
            if self._transform is None and not self._views:
                return batch
            x = torch.unflatten(self._transformed(x.flatten(0, 1), step), 0, batch.y.shape[:2])
        if self._views:
            return replace(batch, x=x[:, :, 0], views=x[:, :, 1:])
        return replace(batch, x=x)

    def _transformed(self, x: Tensor, step: int) -> Tensor:
        # (N, ...), or with views (N, 1 + V, ...); on a CPU, the threads that read ahead call it
        versions = [x] * (1 + self._views)
        if self._transform is not None:
            keys = ([view] if view else [] for view in range(1 + self._views))
            generators = (_generator(self._seed, "transform", step, *key) for key in keys)
            versions = [self._transform(x, generator) for generator in generators]
        return torch.stack(versions, 1) if self._views else versions[0]

    def _selected(self, environments: Sequence[int], step: int) -> Batch:
        examples = []
        for e in environments:
            block, visit = divmod(self._visits(e, step), self._together)
            examples.append({n: v[visit] for n, v in self._block(e, block).items()})
        more: dict[str, Any] = {}
        if self._stored:
            more["x"] = torch.unflatten(self._reads[step], 0, (len(environments), self.batch_size))
        if len(environments) < len(self.sizes):
            more["environments"] = to_device(torch.tensor(environments), self._device)
        return _stacked(examples, more)

    def _selected_block(self, environment: int, block: int) -> dict[str, Tensor]:
        count = self._together * self.batch_size
        found = self._examples(environment, self._indices(environment, block * count, count))
        return {n: torch.unflatten(v, 0, (self._together, -1)) for n, v in found.items()}

    def _examples(self, environment: int, index: Tensor) -> dict[str, Tensor]:
        index, whole = to_device(index, self._device), self._environments[environment]
        found = {"y": whole.y.index_select(0, index)}
        if whole.attributes is not None:
            found["attributes"] = whole.attributes.index_select(0, index)
        if self._indexed:
            found["index"] = index
        if isinstance(whole.x, Tensor):
            rows = index if whole.rows is None else whole.rows[index]
            found["x"] = whole.x.index_select(0, rows)
        return found

    def _request(self, step: int) -> Request:
        count, environments = self.batch_size, self._environments_at(step)
        starts = {e: self._visits(e, step) * count for e in environments}
        return [(self._stored[e], self._indices(e, start, count)) for e, start in starts.items()]

    def _indices(self, environment: int, start: int, count: int) -> Tensor:
        size = self.sizes[environment]
        used = size if self._repeat else size - size % self.batch_size
        epochs = range(start // used, (start + count - 1) // used + 1)
        order = torch.cat([self._order(environment, epoch)[:used] for epoch in epochs])
        return order[start % used :][:count]

    def _visits(self, environment: int, step: int) -> int:
        for earlier in range(self._counted, step):
            present = self._environments_at(earlier)
            if len(present) < len(self.sizes):
                for absent in {*range(len(self.sizes))}.difference(present):
                    self._absences[absent].append(earlier)
        self._counted = max(self._counted, step)
        return step - bisect_left(self._absences[environment], step)

    def _drawn_order(self, environment: int, epoch: int) -> Tensor:
        generator = _generator(self._seed, environment, epoch)
        if self._labels:
            return resample(self._labels[environment], generator)
        order = torch.randperm(self.sizes[environment], generator=generator)
        return self._kept[environment][order] if self._kept else order


def _stacked(examples: Sequence[Mapping[str, Tensor]], more: Mapping[str, Any]) -> Batch:
    stacked: dict[str, Any] = {n: torch.stack([of[n] for of in examples]) for n in examples[0]}
    return Batch(**stacked, **more)


def resample(labels: Tensor, generator: torch.Generator) -> Tensor:
    """N indices drawn with replacement, with equal probability for each of the distinct labels (N,)."""
    order = labels.argsort(stable=True)
    counts = torch.unique(labels, return_counts=True)[1]
    label = torch.randint(len(counts), labels.shape, generator=generator)
    share = torch.rand(labels.shape, generator=generator, dtype=torch.float64)
    drawn: Tensor = order[(counts.cumsum(0) - counts)[label] + (share * counts[label]).long()]
    return drawn


def subsample(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Sorted indices of a random subset with as many examples of each label (N,) as of the rarest."""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    counts = torch.unique(labels, return_counts=True)[1]
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return order[rank < counts.min()].sort().values


def _generator(*names: object) -> torch.Generator:
    return torch.Generator().manual_seed(derive(*names))
