"""Metrics of a predictor on every (environment, split)."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.data.streams import ReadAhead, Stored, chunk_size
from oodbench.datasets import Environment
from oodbench.metrics import Groups, values_of_examples, values_of_groups
from oodbench.results.run_spec import Evaluation
from oodbench.tasks import Task

CHUNK = 64, 8192
"""The fewest and the most examples of a forward pass."""
CACHED_VALUES, DEVICE_VALUES = 2**17, 2**24
"""Input values per forward pass: on a CPU few enough for activations to stay in its caches, on a GPU
enough to occupy it."""
ROWS = 2**16
"""Examples per forward pass of many predictors, counted over all of them."""
OUTPUTS = "outputs"
PREDICTED_VALUES = 2**26
"""The most outputs of a forward pass: a vocabulary at each of many tokens is large."""
OfGroups = Mapping[str, Mapping[str, Groups]]
"""The groups of the splits by environment; those of classes have balanced accuracies and more."""


@dataclass(frozen=True)
class _Scored:
    """What is known of a split, in the order of its values: a mean a metric, then hits a group."""

    environment: str
    split: str
    metrics: Sequence[str]
    count: int
    groups: Sequence[Groups]
    """The groups of each predictor's data; empty where there are none."""


def evaluate(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    splits: Mapping[str, Mapping[str, Tensor]],
    task: Task,
    loader_workers: int = 0,
    whole: Callable[[str, Tensor, Tensor], Mapping[str, float]] | None = None,
    groups: OfGroups | None = None,
) -> list[Evaluation]:
    """Return every metric of `task` on every split of every environment: the mean over its examples.

    `predict` maps inputs as they are in memory or read (N, ...) to logits (N, C); `splits` holds
    the indices of each environment's splits. An empty split gives no value. `whole` gives further
    metrics, of a whole split: see `Dataset.split_metrics`. Of `groups` the splits have the metrics
    that `values_of_groups` names.
    """

    def work(logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        kept = {} if whole is None else {OUTPUTS: task.kept(logits).cpu()}
        return values_of_examples(task, logits, y) | kept

    collected = _collect(predict, environments, task, loader_workers, work)
    outputs = {name: parts.pop(OUTPUTS, torch.empty(0)) for name, parts in collected.items()}
    scored: list[_Scored] = []
    values: list[Tensor] = []
    for name, metrics in collected.items():
        for split, index in splits[name].items():
            if not len(index):
                continue
            parts = {metric: value[index].double() for metric, value in metrics.items()}
            values.append(torch.stack([part.mean() for part in parts.values()]))
            own = [groups[name][split]] if groups and name in groups else []
            values += [hits(g.keys, parts["accuracy"], len(g.counts)) for g in own]
            scored.append(_Scored(name, split, [*parts], len(index), own))
    (evaluations,) = _evaluations(scored, [torch.cat(values).tolist()])
    if whole is not None:
        for name, found in outputs.items():
            for split, index in splits[name].items():
                place = index.cpu()
                further = whole(name, place, found[place]) if len(place) else {}
                evaluations += [
                    Evaluation(name, split, m, v, len(place)) for m, v in further.items()
                ]
    return evaluations


def mean_loss(evaluations: Sequence[Evaluation], task: Task) -> float:
    """The mean over environments of the mean loss, of evaluations of one split of each."""
    losses = [e.value for e in evaluations if e.metric == task.loss_metric]
    return sum(losses) / len(losses)


def evaluate_vectorized(
    predict: Callable[[Tensor, slice], Tensor],
    environments: Sequence[Mapping[str, Environment]],
    splits: Sequence[Mapping[str, Mapping[str, Tensor]]],
    task: Task,
    groups: Sequence[OfGroups] | None = None,
) -> list[list[Evaluation]]:
    """Return what `evaluate` does, for each of K predictors on data of its own.

    The data of all predictors are in memory and have equal shapes.

    `predict` maps inputs (R, N, ...) to logits (R, N, C) for R predictors, told by their places.
    """
    scored: list[_Scored] = []
    values: list[Tensor] = []
    for name, first in environments[0].items():
        data = [e[name] for e in environments]
        chunks = []
        chunk = _size(first, task)
        for start in range(0, len(first.y), chunk):
            rows = slice(start, start + chunk)
            size = max(2, ROWS // len(first.y[rows]))
            found = [
                predict(stacked([e.x[rows] for e in data[i : i + size]]), slice(i, i + size))
                for i in range(0, len(data), size)
            ]
            y = stacked([e.y[rows] for e in data])
            chunks.append(values_of_examples(task, torch.cat(found), y))
        metrics = {metric: torch.cat([c[metric] for c in chunks], 1) for metric in chunks[0]}
        for split, index in splits[0][name].items():
            if not len(index):
                continue
            places = stacked([s[name][split] for s in splits])
            parts = {metric: value.gather(1, places).double() for metric, value in metrics.items()}
            values.append(torch.stack([part.mean(1) for part in parts.values()], 1))
            own = [g[name][split] for g in groups or () if name in g]
            if own:
                keys = stacked([g.keys for g in own])
                values.append(hits(keys, parts["accuracy"], len(own[0].counts)))
            scored.append(_Scored(name, split, [*parts], len(index), own))
    return _evaluations(scored, torch.cat(values, 1).tolist())


def hits(keys: Tensor, right: Tensor, groups: int) -> Tensor:
    """How many examples of each group `right` (..., n) says 1 of, (..., groups), exact in float64.

    `keys` (..., n) are the examples' groups.
    """
    counts = right.new_zeros(*right.shape[:-1], groups, dtype=torch.float64)
    return counts.scatter_add_(-1, keys, right.double())


def shapes(
    environments: Mapping[str, Environment], splits: Mapping[str, Mapping[str, Tensor]]
) -> tuple[object, ...]:
    """A key that data have in common on which predictors are evaluated together."""
    return tuple(
        (name, e.x.shape, e.y.shape, *((s, len(i)) for s, i in splits[name].items()))
        for name, e in environments.items()
    )


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors of one shape along a new first dimension; one tensor many times is not copied."""
    distinct = {(t.data_ptr(), t.shape): t for t in tensors}
    if len(distinct) == 1:
        return tensors[0].expand(len(tensors), *tensors[0].shape)
    return torch.stack(list(tensors))


def _evaluations(
    scored: Sequence[_Scored], values: Iterable[Sequence[float]]
) -> list[list[Evaluation]]:
    """The evaluations of each predictor, from its values in the order of the splits."""
    return [
        [
            Evaluation(split.environment, split.split, metric, value, count)
            for split in scored
            for metric, value, count in _of_split(split, k, rest)
        ]
        for k, rest in enumerate(map(iter, values))
    ]


def _of_split(split: _Scored, k: int, rest: Iterator[float]) -> Iterator[tuple[str, float, int]]:
    """The metric, value and count of each number of a predictor `k` on a split, from `rest` on."""
    for metric in split.metrics:
        yield metric, next(rest), split.count
    if split.groups:
        groups = split.groups[k]
        yield from values_of_groups(groups, list(itertools.islice(rest, len(groups.counts))))


def logits(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    task: Task,
    loader_workers: int = 0,
) -> dict[str, Tensor]:
    """Return what `task` keeps of the logits (N, C) of all examples of every environment, on the CPU."""
    found = _collect(
        predict, environments, task, loader_workers, lambda x, _: {OUTPUTS: task.kept(x)}
    )
    return {name: parts[OUTPUTS].cpu() for name, parts in found.items()}


def _collect(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    task: Task,
    loader_workers: int,
    work: Callable[[Tensor, Tensor], dict[str, Tensor]],
) -> dict[str, dict[str, Tensor]]:
    """Return what `work` makes of logits and targets, by environment and then by its own keys.

    `work` is given logits (n, ...) and targets of a piece. The memory for whole environments is
    allocated first: small results allocated between the large tensors of the pieces would leave
    holes in the heap that the next large ones do not fit into.
    """
    found: dict[str, dict[str, Tensor]] = {name: {} for name in environments}
    for name, part, logits, y in predictions(predict, environments, task, loader_workers):
        own = found[name]
        for key, values in work(logits, y).items():
            if key not in own:
                own[key] = values.new_empty(len(environments[name].y), *values.shape[1:])
            own[key][part] = values
    return found


def predictions(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    task: Task,
    loader_workers: int,
) -> Iterator[tuple[str, slice, Tensor, Tensor]]:
    """Yield all examples in pieces: environment, places, logits (n, ...) and targets (n, ...)."""
    pieces = [
        (name, environment, places)
        for name, environment in environments.items()
        for places in torch.split(torch.arange(len(environment.y)), _size(environment, task))
    ]
    stored = [(e.x, places) for _, e, places in pieces if isinstance(e.x, Stored)]
    device = next(iter(environments.values())).y.device
    reads = ReadAhead(lambda i: [stored[i]], len(stored), device, loader_workers)
    read = itertools.count()
    for name, environment, places in pieces:
        part = slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0)
        x = reads[next(read)] if isinstance(environment.x, Stored) else environment.x[part]
        yield name, part, predict(x), environment.y[part]


def _size(environment: Environment, task: Task) -> int:
    x, limit = environment.x, PREDICTED_VALUES // task.values
    if isinstance(x, Stored):
        return max(1, min(chunk_size(x), limit))
    fewest, most = CHUNK
    values = CACHED_VALUES if x.device.type == "cpu" else DEVICE_VALUES
    size: int = values // max(1, math.prod(x.shape[1:]))
    return max(1, min(max(fewest, min(size, most)), limit))
