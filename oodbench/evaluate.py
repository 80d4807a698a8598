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
    chunks: dict[str, list[dict[str, Tensor]]] = {name: [] for name in environments}
    outputs: dict[str, list[Tensor]] = {name: [] for name in environments}
    for name, found, y in _predictions(predict, environments, task, loader_workers):
        chunks[name].append(task.metrics(found, y))
        if whole is not None:
            outputs[name].append(task.kept(found).cpu())
    names: list[tuple[str, str, str, int]] = []
    values: list[Tensor] = []
    for name, parts in chunks.items():
        metrics = {metric: torch.cat([part[metric] for part in parts]) for metric in parts[0]}
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
        for name, found_parts in outputs.items():
            for split, index in splits[name].items():
                place = index.cpu()
                further = whole(name, place, torch.cat(found_parts)[place]) if len(place) else {}
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
    chunks: dict[str, list[Tensor]] = {name: [] for name in environments}
    for name, found, _ in _predictions(predict, environments, task, loader_workers):
        chunks[name].append(task.kept(found))
    return {name: torch.cat(parts).cpu() for name, parts in chunks.items()}


def _predictions(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    task: Task,
    loader_workers: int,
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """All examples in pieces: the environment, the logits (N, C) and the targets (N, ...)."""
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
        yield name, predict(x), environment.y[part]


def _size(environment: Environment, task: Task) -> int:
    size = chunk_size(environment.x) if isinstance(environment.x, Stored) else CHUNK
    return max(1, min(size, PREDICTED_VALUES // task.values))
