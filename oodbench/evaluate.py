"""Metrics of a predictor on every (environment, split)."""

import itertools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from oodbench.datasets import Environment
from oodbench.records import Evaluation
from oodbench.streams import ReadAhead, Stored, chunk_size
from oodbench.tasks import Task

CHUNK = 8192
"""Examples in memory of a forward pass."""
OUTPUTS = "outputs"
PREDICTED_VALUES = 2**26
"""Of a forward pass, at most: a vocabulary at each of many tokens is large."""


def evaluate(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    splits: Mapping[str, Mapping[str, Tensor]],
    task: Task,
    loader_workers: int = 0,
    whole: Callable[[str, Tensor, Tensor], Mapping[str, float]] | None = None,
) -> list[Evaluation]:
    """Every metric of `task` on every split of every environment: the mean over its examples.

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
    means = torch.stack(values).tolist()
    evaluations = [
        Evaluation(environment, split, metric, value, count)
        for (environment, split, metric, count), value in zip(names, means, strict=True)
    ]
    if whole is not None:
        for name, found in outputs.items():
            for split, index in splits[name].items():
                place = index.cpu()
                further = whole(name, place, found[place]) if len(place) else {}
                evaluations += [
                    Evaluation(name, split, m, v, len(place)) for m, v in further.items()
                ]
    return evaluations


def logits(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    task: Task,
    loader_workers: int = 0,
) -> dict[str, Tensor]:
    """What `task` keeps of the logits (N, C) of all examples of every environment, on the CPU."""
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
    """What `work` makes of logits (n, ...) and targets, (n, ...) each, for whole environments.

    Their room is there beforehand: what is kept of a piece, allocated between its large tensors,
    would leave holes in the heap that the next large ones do not fit into.
    """
    found: dict[str, dict[str, Tensor]] = {name: {} for name in environments}
    for name, part, logits, y in _predictions(predict, environments, task, loader_workers):
        own = found[name]
        for key, values in work(logits, y).items():
            if key not in own:
                own[key] = values.new_empty(len(environments[name].y), *values.shape[1:])
            own[key][part] = values
    return found


def _predictions(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    task: Task,
    loader_workers: int,
) -> Iterator[tuple[str, slice, Tensor, Tensor]]:
    """All examples in pieces: the environment, their places, logits (n, ...) and targets (n, ...)."""
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
    size = chunk_size(environment.x) if isinstance(environment.x, Stored) else CHUNK
    return max(1, min(size, PREDICTED_VALUES // task.values))
