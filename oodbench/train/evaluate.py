"""The metrics of predictors and of constant answers on every split of every environment."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from oodbench.data.streams import ReadAhead, Stored, chunk_size
from oodbench.datasets import Dataset, Environment
from oodbench.metrics import Groups, checked, values_of_examples, values_of_groups
from oodbench.results.run_spec import MEMORIZED, MISLABELED, Evaluation
from oodbench.tasks import Task
from oodbench.train.loading import Data

CHUNK = 64, 8192
"""The least and the greatest number of examples in a forward pass."""
CACHED_VALUES, DEVICE_VALUES = 2**17, 2**24
"""Input values in a forward pass: few enough for a CPU's caches, enough to keep a GPU busy."""
OUTPUTS = "outputs"
PREDICTED_VALUES = 2**26
"""The most outputs of a forward pass, for tasks with many tokens and a large vocabulary."""
SplitMetrics = Callable[[str, Tensor, Tensor], Mapping[str, float]]
Constants = dict[str, dict[str, dict[str, float | None]]]
"""metric -> environment -> split -> value; None if the metric of a constant is not defined."""


@dataclass(frozen=True)
class Scored:
    """Examples on which a predictor is scored."""

    environments: Mapping[str, Environment]
    splits: Mapping[str, Mapping[str, Tensor]]
    """The indices of the examples in each environment's splits; empty splits get no values."""
    task: Task
    groups: Mapping[str, Mapping[str, Groups]] = field(default_factory=dict)
    """Groups by environment and split, for the metrics of `values_of_groups`."""
    whole: SplitMetrics | None = None
    """Metrics of a whole split, see `whole_metrics`."""
    batches: Mapping[str, Sequence[Tensor]] | None = None
    """By environment, the indices of examples that must be predicted together; None: examples are predicted
    in order, as many at once as suits the machine."""
    loader_workers: int = 0

    def chunks(self, name: str) -> Sequence[slice | Tensor]:
        """The rows of an environment's examples, by forward pass."""
        environment = self.environments[name]
        if self.batches is not None:
            return [index.to(environment.y.device) for index in self.batches[name]]
        count, limit = len(environment.y), PREDICTED_VALUES // self.task.values
        if isinstance(environment.x, Stored):
            size = chunk_size(environment.x)
        else:
            fewest, most = CHUNK
            values = CACHED_VALUES if environment.x.device.type == "cpu" else DEVICE_VALUES
            of_example = max(1, math.prod(environment.x.shape[1:]))
            size = max(fewest, min(values // of_example, most))
        size = max(1, min(size, limit))
        return [slice(i, min(i + size, count)) for i in range(0, max(1, count), size)]


def evaluate(predict: Callable[[Tensor], Tensor], scored: Scored) -> list[Evaluation]:
    """Every recorded metric of a predictor on every split of every environment.

    `predict` maps inputs (N, ...) as the environment holds them to logits (N, C).
    """
    task, whole = scored.task, scored.whole

    def of_chunk(logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        kept = {} if whole is None else {OUTPUTS: task.kept(logits).cpu()}
        return values_of_examples(task, logits, y) | kept

    collected = _collect(predict, scored, of_chunk)
    outputs = {name: values.pop(OUTPUTS)[0] for name, values in collected.items() if whole}
    (evaluations,) = evaluations_of(collected, [scored])
    for name, kept in outputs.items():
        for split, index in scored.splits[name].items():
            if whole is not None and len(index) and split != MISLABELED:
                indices = index.cpu()
                further = whole(name, indices, kept[indices])
                evaluations += [Evaluation(name, split, *e, len(index)) for e in further.items()]
    return evaluations


def with_memorized(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Replace values on `mislabeled` examples by the accuracy on all of them, the share memorized."""
    wrong = [e for e in evaluations if e.split == MISLABELED and e.metric == "accuracy"]
    rest = [e for e in evaluations if e.split != MISLABELED]
    if count := sum(e.count for e in wrong):
        share = sum(e.value * e.count for e in wrong) / count
        rest.append(Evaluation(None, None, MEMORIZED, share, count))
    return rest


def mean_loss(evaluations: Sequence[Evaluation], task: Task) -> float:
    """The mean over environments of the mean loss, given evaluations on one split of each environment."""
    losses = [e.value for e in evaluations if e.metric == task.loss_metric]
    return sum(losses) / len(losses)


def put_chunk(
    whole: dict[str, Tensor], rows: list[Any], found: Mapping[str, Tensor], count: int
) -> None:
    """Write the values `found` (K, n, ...) of a chunk to their rows in `whole` (K, count, ...).

    K is the number of predictors. `rows` has each predictor's rows, as a slice or as indices.
    """
    for key, values in found.items():
        if key not in whole:
            # at once: small results between the chunks' large tensors would fragment the heap;
            # an example of no chunk, as it belongs to no split, keeps this value
            missing = math.nan if values.is_floating_point() else -1
            whole[key] = values.new_full((len(values), count, *values.shape[2:]), missing)
        if isinstance(rows[0], slice):
            whole[key][:, rows[0]] = values
        else:
            runs = torch.arange(len(rows), device=values.device)[:, None]
            whole[key][runs, torch.stack(rows).to(values.device)] = values


def evaluations_of(
    collected: Mapping[str, Mapping[str, Tensor]], scored: Sequence[Scored]
) -> list[list[Evaluation]]:
    """The evaluations of K predictors, given the examples' values (K, N) by environment and metric."""
    columns: list[tuple[str, str, Sequence[str], int, list[Groups]]] = []
    values: list[Tensor] = []
    for name, metrics in collected.items():
        for split, index in scored[0].splits[name].items():
            if not len(index):
                continue
            indices = torch.stack([s.splits[name][split] for s in scored])
            of_split = {m: value.gather(1, indices).double() for m, value in metrics.items()}
            values.append(torch.stack([value.mean(1) for value in of_split.values()], 1))
            of_groups = [s.groups[name][split] for s in scored if name in s.groups]
            if of_groups:
                keys = torch.stack([g.keys for g in of_groups])
                right = of_split["accuracy"]  # float64, in which these sums are exact
                hits = right.new_zeros(len(right), len(of_groups[0].counts))
                values.append(hits.scatter_add_(1, keys, right))
            columns.append((name, split, [*of_split], len(index), of_groups))
    found: list[list[Evaluation]] = []
    for k, row in enumerate(torch.cat(values, 1).tolist()):
        rest, of_run = iter(row), list[Evaluation]()
        for name, split, names, count, of_groups in columns:
            of_run += [Evaluation(name, split, m, checked(m, next(rest)), count) for m in names]
            if of_groups:
                hit = list(itertools.islice(rest, len(of_groups[k].counts)))
                further = values_of_groups(of_groups[k], hit)
                of_run += [Evaluation(name, split, m, checked(m, v), n) for m, v, n in further]
        found.append(of_run)
    return found


def logits(predict: Callable[[Tensor], Tensor], scored: Scored) -> dict[str, Tensor]:
    """The logits (N, C) of all examples by environment, as `Task.kept` keeps them, on the CPU."""
    collected = _collect(predict, scored, lambda x, y: {OUTPUTS: scored.task.kept(x)})
    return {name: values[OUTPUTS][0].cpu() for name, values in collected.items()}


def _collect(
    predict: Callable[[Tensor], Tensor],
    scored: Scored,
    of_chunk: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
) -> dict[str, dict[str, Tensor]]:
    collected: dict[str, dict[str, Tensor]] = {name: {} for name in scored.environments}
    for name, rows, logits, y in predictions(predict, scored):
        found = {key: values[None] for key, values in of_chunk(logits, y).items()}
        put_chunk(collected[name], [rows], found, len(scored.environments[name].y))
    return collected


def predictions(
    predict: Callable[[Tensor], Tensor], scored: Scored
) -> Iterator[tuple[str, slice | Tensor, Tensor, Tensor]]:
    """Yield all examples in chunks: environment, rows, logits (n, ...) and targets (n, ...)."""
    chunks = [(name, e, r) for name, e in scored.environments.items() for r in scored.chunks(name)]
    stored = [
        (e.x, torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.cpu())
        for _, e, rows in chunks
        if isinstance(e.x, Stored)
    ]
    device = next(iter(scored.environments.values())).y.device
    reads = ReadAhead(lambda i: [stored[i]], len(stored), device, scored.loader_workers)
    read = itertools.count()
    for name, environment, rows in chunks:
        x = reads[next(read)] if isinstance(environment.x, Stored) else environment.x[rows]
        yield name, rows, predict(x), environment.y[rows]


def whole_metrics(dataset: Dataset) -> SplitMetrics | None:
    """The dataset's `split_metrics`, or None if not overridden, so that no predictions have to be kept."""
    own = dataset.split_metrics
    return None if getattr(own, "__func__", None) is Dataset.split_metrics else own


@torch.no_grad()
def constant_answer(
    data: Data, training: Sequence[str], scored: Mapping[str, Environment]
) -> Constants:
    """The metrics of the best constant answers on each split of the `scored` environments.

    For each metric, the constant is the best on the pooled `in` splits of the `training` environments
    (`Task.constants`); for `Dataset.split_metrics`, it is the best for the main metric. Constants are
    computed once for all runs with the same training environments.
    """
    known: Constants | None = data.constants.get(tuple(training))
    if known is not None:
        return known
    dataset, task = data.dataset, data.dataset.task
    targets = torch.cat([data.environments[n].y[data.splits[n]["in"]] for n in training])
    # without inputs, which a constant does not need
    blind = {name: Environment(e.y.new_empty(len(e.y), 0), e.y) for name, e in scored.items()}
    outputs = task.constants(targets)
    constants: Constants = {}
    for best_for, output in outputs.items():
        whole = whole_metrics(dataset) if task.metric in best_for else None

        def predict(x: Tensor, output: Tensor = output) -> Tensor:
            return output.expand(len(x), *output.shape)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a correlation with a constant is not defined
            evaluations = evaluate(predict, Scored(blind, data.splits, task, data.groups, whole))
        others = {metric for metrics in outputs if metrics != best_for for metric in metrics}
        for e in evaluations:
            if e.metric not in others:
                of_metric = constants.setdefault(e.metric, {})
                value = e.value if math.isfinite(e.value) else None
                of_metric.setdefault(str(e.environment), {})[str(e.split)] = value
    data.constants[tuple(training)] = constants
    return constants
