"""Metrics of a predictor on every (environment, split)."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from oodbench.data.streams import ReadAhead, Stored, chunk_size
from oodbench.datasets import Environment
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


def evaluate(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    splits: Mapping[str, Mapping[str, Tensor]],
    task: Task,
    loader_workers: int = 0,
    whole: Callable[[str, Tensor, Tensor], Mapping[str, float]] | None = None,
) -> list[Evaluation]:
    """Return every metric of `task` on every split of every environment: the mean over its examples.

    `predict` maps inputs as they are in memory or read (N, ...) to logits (N, C); `splits` holds
    the indices of each environment's splits. An empty split gives no value. `whole` gives further
    metrics, of a whole split: see `Dataset.split_metrics`.
    """

    def work(logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        kept = {} if whole is None else {OUTPUTS: task.kept(logits).cpu()}
        return task.metrics(logits, y) | kept

    collected = _collect(predict, environments, task, loader_workers, work)
    outputs = {name: parts.pop(OUTPUTS, torch.empty(0)) for name, parts in collected.items()}
    names: list[tuple[str, str, str, int]] = []
    values: list[Tensor] = []
    for name, metrics in collected.items():
        for split, index in splits[name].items():
            for metric, value in metrics.items():
                if len(index):
                    names.append((name, split, metric, len(index)))
                    values.append(value[index].double().mean())
    (evaluations,) = _evaluations(names, [torch.stack(values).tolist()])
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
) -> list[list[Evaluation]]:
    """Return what `evaluate` does, for each of K predictors on data of its own.

    The data of all predictors are in memory and have equal shapes.

    `predict` maps inputs (R, N, ...) to logits (R, N, C) for R predictors, told by their places.
    """
    names: list[tuple[str, str, str, int]] = []
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
            chunks.append(task.metrics(torch.cat(found), y))
        metrics = {metric: torch.cat([c[metric] for c in chunks], 1) for metric in chunks[0]}
        for split, index in splits[0][name].items():
            places = stacked([s[name][split] for s in splits])
            for metric, value in metrics.items():
                if len(index):
                    names.append((name, split, metric, len(index)))
                    values.append(value.gather(1, places).double().mean(1))
    return _evaluations(names, torch.stack(values).T.tolist())


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
    names: Sequence[tuple[str, str, str, int]], values: Iterable[Sequence[float]]
) -> list[list[Evaluation]]:
    """The evaluations of each predictor, from `names` (environment, split, metric, count) and its
    values, in the order of the names.
    """
    return [
        [
            Evaluation(environment, split, metric, value, count)
            for (environment, split, metric, count), value in zip(names, found, strict=True)
        ]
        for found in values
    ]


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
