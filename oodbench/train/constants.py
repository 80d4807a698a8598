"""The constant answer: what a predictor that ignores its inputs reaches at best."""

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from oodbench.datasets import Environment
from oodbench.train.evaluate import evaluate
from oodbench.train.loading import Data

Constants = dict[str, dict[str, dict[str, float | None]]]
"""Metric to environment to split to value; None where the metric of a constant is not defined."""


@torch.no_grad()
def constant_answer(
    data: Data, training: Sequence[str], scored: Mapping[str, Environment]
) -> Constants:
    """The value of every metric on each split of the `scored` environments for its best constant answer.

    The constant is the best one for the metric on the pooled `in` splits of the `training`
    environments (`Task.constants`); a dataset's metrics of whole splits (`Dataset.split_metrics`)
    are those of the constant that is best for the main one. Nothing depends on inputs, so
    none are read. Data are looked at once for all runs with the same training environments.
    """
    names = tuple(training)
    found: Constants | None = data.constants.get(names)
    if found is None:
        found = data.constants[names] = _work_out(data, names, scored)
    return found


def _work_out(data: Data, training: Sequence[str], scored: Mapping[str, Environment]) -> Constants:
    dataset, task = data.dataset, data.dataset.task
    targets = torch.cat([data.environments[n].y[data.splits[n]["in"]] for n in training])
    blind = {name: Environment(e.y.new_empty(len(e.y), 0), e.y) for name, e in scored.items()}
    outputs = task.constants(targets)
    found: Constants = {}
    for best_for, output in outputs.items():
        rated = dataset.has_split_metrics and task.metric in best_for
        whole = dataset.split_metrics if rated else None

        def predict(x: Tensor, output: Tensor = output) -> Tensor:
            return output.expand(len(x), *output.shape)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a correlation with a constant is not defined
            evaluations = evaluate(
                predict, blind, data.splits, task, whole=whole, groups=data.groups
            )
        others = {metric for metrics in outputs if metrics != best_for for metric in metrics}
        for e in evaluations:
            if e.metric not in others:
                value = e.value if math.isfinite(e.value) else None
                of_metric = found.setdefault(e.metric, {})
                of_metric.setdefault(str(e.environment), {})[str(e.split)] = value
    return found
