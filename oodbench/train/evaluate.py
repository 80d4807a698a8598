"""The metrics of predictors, and of constant answers, on every split of every environment."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oodbench.data.streams import ReadAhead, Stored, chunk_size
from oodbench.datasets import Dataset, Environment
from oodbench.metrics import Groups, values_of_examples, values_of_groups
from oodbench.results.run_spec import MEMORIZED, MISLABELED, Evaluation
from oodbench.tasks import Task
from oodbench.train.loading import Data

CHUNK = 64, 8192
"""The least and the largest number of examples of a forward pass."""
CACHED_VALUES, DEVICE_VALUES = 2**17, 2**24
"""Input values per forward pass: on a CPU its activations stay in the caches, on a GPU it is busy."""
ROWS = 2**16
"""Examples per forward pass of many predictors, counted over all of them."""
OUTPUTS = "outputs"
PREDICTED_VALUES = 2**26
"""The most outputs of a forward pass, for tasks with a large vocabulary at each of many tokens."""
SplitMetrics = Callable[[str, Tensor, Tensor], Mapping[str, float]]
Constants = dict[str, dict[str, dict[str, float | None]]]
"""metric -> environment -> split -> value; None where the metric of a constant is not defined."""


@dataclass(frozen=True)
class Scored:
    """Examples on which predictors are scored."""

    environments: Mapping[str, Environment]
    splits: Mapping[str, Mapping[str, Tensor]]
    """The indices of the examples in each environment's splits; an empty split has no values."""
    task: Task
    groups: Mapping[str, Mapping[str, Groups]] = field(default_factory=dict)
    """Groups by environment and split, for the metrics of `values_of_groups`."""
    whole: SplitMetrics | None = None
    """Further metrics of a split, see `whole_metrics`."""
    batches: Mapping[str, Sequence[Tensor]] | None = None
    """The indices of the examples of an environment that are predicted together, batch by batch; None:
    examples are predicted in their order, as many at once as suits the machine."""
    loader_workers: int = 0

    @property
    def shapes(self) -> tuple[object, ...]:
        """A key; examples with equal keys can be scored together."""
        return tuple(
            (name, e.x.shape, e.y.shape, *((s, len(i)) for s, i in self.splits[name].items()))
            for name, e in self.environments.items()
        )

    def chunks(self, name: str) -> Sequence[Tensor]:
        """The indices of an environment's examples, by forward pass."""
        if self.batches is not None:
            return self.batches[name]
        environment = self.environments[name]
        return torch.split(torch.arange(len(environment.y)), _size(environment, self.task))


def evaluate(predict: Callable[[Tensor], Tensor], scored: Scored) -> list[Evaluation]:
    """Every recorded metric of a predictor on every split of every environment.

    `predict` maps inputs (N, ...), as they are in memory or read, to logits (N, C).
    """
    task, whole = scored.task, scored.whole

    def of_chunk(logits: Tensor, y: Tensor) -> dict[str, Tensor]:
        kept = {} if whole is None else {OUTPUTS: task.kept(logits).cpu()}
        return values_of_examples(task, logits, y) | kept

    collected = _collect(predict, scored, of_chunk)
    outputs = {name: values.pop(OUTPUTS, torch.empty(0)) for name, values in collected.items()}
    of_one = {name: {m: v[None] for m, v in of.items()} for name, of in collected.items()}
    (evaluations,) = _evaluations(of_one, [scored])
    if whole is None:
        return evaluations
    for name, kept in outputs.items():
        for split, index in scored.splits[name].items():
            if len(index) and split != MISLABELED:
                indices = index.cpu()
                further = whole(name, indices, kept[indices])
                evaluations += [Evaluation(name, split, *e, len(index)) for e in further.items()]
    return evaluations


def with_memorized(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Replace the values on `mislabeled` examples by the accuracy on all of them: the share memorized."""
    wrong = [e for e in evaluations if e.split == MISLABELED and e.metric == "accuracy"]
    rest = [e for e in evaluations if e.split != MISLABELED]
    if count := sum(e.count for e in wrong):
        share = sum(e.value * e.count for e in wrong) / count
        rest.append(Evaluation(None, None, MEMORIZED, share, count))
    return rest


def mean_loss(evaluations: Sequence[Evaluation], task: Task) -> float:
    """The mean over environments of the mean loss, given evaluations of one split of each."""
    losses = [e.value for e in evaluations if e.metric == task.loss_metric]
    return sum(losses) / len(losses)


def evaluate_vectorized(
    predict: Callable[[Tensor, slice], Tensor], scored: Sequence[Scored]
) -> list[list[Evaluation]]:
    """The evaluations of K predictors, each on the examples of its own, as `evaluate` returns them.

    All examples are in memory, and of equal shapes. `predict` maps inputs (R, N, ...) and the indices of
    R predictors to their logits (R, N, C).
    """
    collected: dict[str, dict[str, Tensor]] = {}
    task, in_order = scored[0].task, scored[0].batches is None
    for name, first in scored[0].environments.items():
        data, chunks = [each.environments[name] for each in scored], []
        together = [scored[0].chunks(name)] if in_order else [s.chunks(name) for s in scored]
        for batch in zip(*together, strict=True):
            rows = [_rows(batch[0], first)] * len(data) if in_order else [*map(_rows, batch, data)]
            x = [e.x[r] for e, r in zip(data, rows, strict=True)]
            size = max(2, ROWS // max(1, len(batch[0])))
            logits = [
                predict(torch.stack(x[i : i + size]), slice(i, i + size))
                for i in range(0, len(data), size)
            ]
            y = torch.stack([e.y[r] for e, r in zip(data, rows, strict=True)])
            chunks.append(values_of_examples(task, torch.cat(logits), y))
        metrics = {metric: torch.cat([c[metric] for c in chunks], 1) for metric in chunks[0]}
        if not in_order:
            arrived = torch.stack([torch.cat([*batch]) for batch in together]).to(first.y.device)
            metrics = {
                metric: value.new_empty(len(value), len(first.y)).scatter_(1, arrived, value)
                for metric, value in metrics.items()
            }
        collected[name] = metrics
    return _evaluations(collected, scored)


def _evaluations(
    collected: Mapping[str, Mapping[str, Tensor]], scored: Sequence[Scored]
) -> list[list[Evaluation]]:
    """The evaluations of K predictors from their examples' values (K, N), by environment and metric."""
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
            of_run += [Evaluation(name, split, m, next(rest), count) for m in names]
            if of_groups:
                hit = list(itertools.islice(rest, len(of_groups[k].counts)))
                further = values_of_groups(of_groups[k], hit)
                of_run += [Evaluation(name, split, *each) for each in further]
        found.append(of_run)
    return found


def logits(predict: Callable[[Tensor], Tensor], scored: Scored) -> dict[str, Tensor]:
    """The logits (N, C) of all examples by environment, as `Task.kept` keeps them, on the CPU."""
    collected = _collect(predict, scored, lambda x, y: {OUTPUTS: scored.task.kept(x)})
    return {name: values[OUTPUTS].cpu() for name, values in collected.items()}


def _collect(
    predict: Callable[[Tensor], Tensor],
    scored: Scored,
    of_chunk: Callable[[Tensor, Tensor], Mapping[str, Tensor]],
) -> dict[str, dict[str, Tensor]]:
    collected: dict[str, dict[str, Tensor]] = {name: {} for name in scored.environments}
    for name, rows, logits, y in predictions(predict, scored):
        whole = collected[name]
        for key, values in of_chunk(logits, y).items():
            if key not in whole:
                # at once: small results between the chunks' large tensors would fragment the heap
                count = len(scored.environments[name].y)
                whole[key] = values.new_empty(count, *values.shape[1:])
            whole[key][rows] = values
    return collected


def predictions(
    predict: Callable[[Tensor], Tensor], scored: Scored
) -> Iterator[tuple[str, slice | Tensor, Tensor, Tensor]]:
    """Yield all examples in chunks: environment, rows, logits (n, ...) and targets (n, ...)."""
    chunks = [
        (name, environment, indices)
        for name, environment in scored.environments.items()
        for indices in scored.chunks(name)
    ]
    stored = [(e.x, indices) for _, e, indices in chunks if isinstance(e.x, Stored)]
    device = next(iter(scored.environments.values())).y.device
    reads = ReadAhead(lambda i: [stored[i]], len(stored), device, scored.loader_workers)
    read = itertools.count()
    for name, environment, indices in chunks:
        rows = _rows(indices, environment)
        x = reads[next(read)] if isinstance(environment.x, Stored) else environment.x[rows]
        yield name, rows, predict(x), environment.y[rows]


def _rows(indices: Tensor, environment: Environment) -> slice | Tensor:
    """A slice, which copies nothing, if the indices are consecutive."""
    if not len(indices):
        return slice(0)
    first, last = int(indices[0]), int(indices[-1])
    if last - first == len(indices) - 1 and bool((indices.diff() == 1).all()):
        return slice(first, last + 1)
    return indices.to(environment.y.device)


def _size(environment: Environment, task: Task) -> int:
    x, limit = environment.x, PREDICTED_VALUES // task.values
    if isinstance(x, Stored):
        return max(1, min(chunk_size(x), limit))
    fewest, most = CHUNK
    values = CACHED_VALUES if x.device.type == "cpu" else DEVICE_VALUES
    size: int = values // max(1, math.prod(x.shape[1:]))
    return max(1, min(max(fewest, min(size, most)), limit))


def whole_metrics(dataset: Dataset) -> SplitMetrics | None:
    """The dataset's `split_metrics`, or None if not overridden: no predictions have to be kept then."""
    own = dataset.split_metrics
    return None if getattr(own, "__func__", None) is Dataset.split_metrics else own


@torch.no_grad()
def constant_answer(
    data: Data, training: Sequence[str], scored: Mapping[str, Environment]
) -> Constants:
    """The metrics of the best constant answers on each split of the `scored` environments.

    A metric is that of the constant that is best for it on the pooled `in` splits of the `training`
    environments (`Task.constants`); `Dataset.split_metrics` are those of the best one for the main
    metric. The answer is computed once for all runs with the same training environments.
    """
    key = tuple(training)
    if key not in data.constants:
        data.constants[key] = _constants(data, training, scored)
    constants: Constants = data.constants[key]
    return constants


def _constants(data: Data, training: Sequence[str], scored: Mapping[str, Environment]) -> Constants:
    dataset, task = data.dataset, data.dataset.task
    targets = torch.cat([data.environments[n].y[data.splits[n]["in"]] for n in training])
    # a constant needs no inputs: skip reading them
    blind = {name: Environment(e.y.new_empty(len(e.y), 0), e.y) for name, e in scored.items()}
    outputs = task.constants(targets)
    constants: Constants = {}
    for best_for, output in outputs.items():
        whole = whole_metrics(dataset) if task.metric in best_for else None

        def predict(x: Tensor, output: Tensor = output) -> Tensor:
            return output.expand(len(x), *output.shape)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a correlation with a constant is not defined
            scored_blind = Scored(blind, data.splits, task, data.groups, whole)
            evaluations = evaluate(predict, scored_blind)
        others = {metric for metrics in outputs if metrics != best_for for metric in metrics}
        for e in evaluations:
            if e.metric not in others:
                of_metric = constants.setdefault(e.metric, {})
                value = e.value if math.isfinite(e.value) else None
                of_metric.setdefault(str(e.environment), {})[str(e.split)] = value
    return constants
