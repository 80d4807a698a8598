"""Metrics of a predictor on every (environment, split)."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from oodbench.datasets import Environment
from oodbench.records import Evaluation
from oodbench.tasks import Task

CHUNK = 8192
"""Examples of a forward pass."""


def evaluate(
    predict: Callable[[Tensor], Tensor],
    environments: Mapping[str, Environment],
    splits: Mapping[str, Mapping[str, Tensor]],
    task: Task,
) -> list[Evaluation]:
    """Every metric of `task` on every split of every environment: the mean over its examples.

    `predict` maps inputs (N, *input_shape) to logits (N, C); `splits` holds the indices of each
    environment's splits. An empty split gives no value.
    """
    names: list[tuple[str, str, str, int]] = []
    values: list[Tensor] = []
    for name, environment in environments.items():
        metrics = _per_example(predict, environment, task)
        for split, index in splits[name].items():
            for metric, value in metrics.items():
                if len(index):
                    names.append((name, split, metric, len(index)))
                    values.append(value[index].double().mean())
    means = torch.stack(values).tolist()
    return [
        Evaluation(environment, split, metric, value, count)
        for (environment, split, metric, count), value in zip(names, means, strict=True)
    ]


def logits(
    predict: Callable[[Tensor], Tensor], environments: Mapping[str, Environment]
) -> dict[str, Tensor]:
    """The logits (N, C) of all examples of every environment, on the CPU."""
    return {
        name: torch.cat([predict(x) for x in torch.split(environment.x, CHUNK)]).cpu()
        for name, environment in environments.items()
    }


def _per_example(
    predict: Callable[[Tensor], Tensor], environment: Environment, task: Task
) -> dict[str, Tensor]:
    chunks = [
        task.metrics(predict(x), y)
        for x, y in zip(
            torch.split(environment.x, CHUNK), torch.split(environment.y, CHUNK), strict=True
        )
    ]
    return {metric: torch.cat([c[metric] for c in chunks]) for metric in chunks[0]}
