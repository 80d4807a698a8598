"""Evaluations of a run whose trained predictor adapts to test inputs (`adapt:` of a row).

Training does not change, because evaluations adapt copies of the network. Each split gets a new copy, so
that a score holds no information about other environments. The `in` splits of the training environments
are scored without adaptation. Scores before adaptation are recorded, too, under names that end in BEFORE.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from oodbench.adaptations import Stream, adaptations, adapted, in_batches
from oodbench.algorithms import Algorithm
from oodbench.data.streams import ReadAhead, Stored
from oodbench.datasets import Environment
from oodbench.networks.base import build
from oodbench.networks.weights import replaced_weights
from oodbench.results.run_spec import BEFORE, MISLABELED, Evaluation, RunSpec
from oodbench.seeds import derive
from oodbench.tasks import Task
from oodbench.train.evaluate import Scored, evaluate, whole_metrics
from oodbench.train.loading import Data
from oodbench.train.process import kept_generators, seed_process

Outputs = dict[str, dict[str, Tensor]]
"""The logits (n, C) of splits' examples, by environment and split."""


def drawn_batches(
    spec: RunSpec, algorithm: Algorithm, splits: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, list[Tensor]] | None:
    """By environment, the indices of the examples that a transductive method predicts together.

    A batch has examples of one split, about as many as a training batch has of an environment, in the order
    in which adaptations see them. None if examples are predicted in stored order.
    """
    if spec.test_order == "stored":
        return None
    size = algorithm.hparams.batch_size or min(algorithm.problem.sizes)
    drawn: dict[str, list[Tensor]] = {}
    for name, of_splits in splits.items():
        drawn[name] = []
        for half, index in of_splits.items():
            if len(index) and half != MISLABELED:  # its examples are in another split, too
                seed = derive("stream", spec.dataset, name, half, spec.trial)
                order = _order(spec.test_order, index, seed)
                drawn[name] += [index.cpu()[batch] for batch in in_batches(order, size)]
    return drawn


def with_adaptation(
    outputs: Outputs, data: Data, evaluations: Sequence[Evaluation]
) -> list[Evaluation]:
    """The evaluations of adapted `outputs`, then the given ones, renamed if on a split that adapted."""
    if not outputs:
        return [*evaluations]
    environments, splits = {}, {}
    for name, of_splits in outputs.items():
        y = data.environments[name].y
        first = next(iter(of_splits.values()))
        logits = first.new_zeros(len(y), *first.shape[1:])
        for half, values in of_splits.items():
            logits[data.splits[name][half]] = values
        environments[name] = Environment(logits, y)
        splits[name] = {half: data.splits[name][half] for half in of_splits}
    whole = whole_metrics(data.dataset)
    scored = Scored(environments, splits, data.dataset.task, data.groups, whole)
    after = evaluate(lambda logits: logits, scored)
    before = [
        replace(e, metric=e.metric + BEFORE)
        if e.split in outputs.get(str(e.environment), ())
        else e
        for e in evaluations
    ]
    return after + before


def adapted_outputs(spec: RunSpec, algorithm: Algorithm, data: Data, scored: Scored) -> Outputs:
    """The logits of every adapted split, in the split's order; none if the run does not adapt."""
    if spec.adapt is None:
        return {}
    hparams = {key: value for key, value in spec.adapt.items() if key != "name"}
    name, transform = spec.adapt["name"], data.dataset.transform
    outputs: Outputs = {}
    names, workers = scored.environments, scored.loader_workers
    every = ((name, half, i) for name in names for half, i in data.splits[name].items())
    for environment, half, index in every:
        if not len(index) or (half == "in" and environment not in spec.held_out):
            continue
        seed = derive("stream", spec.dataset, environment, half, spec.trial)
        stream = stream_of(data.environments[environment], index, hparams, seed, workers)
        with kept_generators():
            seed_process(seed)
            outputs.setdefault(environment, {})[half] = adapted(
                name,
                hparams,
                algorithm,
                stream,
                seed,
                network=lambda copied: copied.network,
                predict=lambda copied, x: copied.predict(transform(x, None)),
            )
    return outputs


def stream_of(
    environment: Environment, index: Tensor, hparams: Mapping[str, Any], seed: int, workers: int
) -> Stream:
    """The inputs of the examples `index` as a stream, in an order that the seed determines."""
    order = _order(hparams["order"], environment.y[index].cpu(), seed)
    x, index = environment.x, index.cpu()

    def read(batches: Sequence[Tensor]) -> Iterator[Tensor]:
        indices = [index[batch] for batch in batches]
        if isinstance(x, Stored):
            device = environment.y.device
            reads = ReadAhead(lambda i: [(x, indices[i])], len(indices), device, workers)
            return (reads[i] for i in range(len(indices)))
        return (x[batch.to(x.device)] for batch in indices)

    return Stream(in_batches(order, hparams["batch_size"]), read)


def _order(order: str, targets: Tensor, seed: int) -> Tensor:
    if order == "stored":
        return torch.arange(len(targets))
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(len(targets), generator=generator)
    if order == "by_class":
        classes = targets.long()
        ranks = torch.randperm(int(classes.max()) + 1, generator=generator)
        indices = indices[ranks[classes[indices]].argsort(stable=True)]
    return indices


def reason_against(
    spec: RunSpec, cls: type[Algorithm], task: Task, input_shape: tuple[int, ...]
) -> str | None:
    """The reason why runs like this cannot adapt, or None; builds the network to find out."""
    if spec.adapt is None:
        return None
    if not task.has_classes:
        return "adaptation needs predictions of classes, and its targets are not classes"
    if not cls.trains_network or cls.overrides("predict"):
        return "it does not predict by its network alone, which is what adapts"
    values = json.dumps(spec.network_hparams, sort_keys=True)
    if not _suits(spec.adapt["name"], spec.network, values, input_shape, task.num_outputs):
        needs = adaptations.get(spec.adapt["name"]).needs
        return f"{spec.adapt['name']} needs {needs}, and the network {spec.network} has none"
    return None


@lru_cache
def _suits(
    name: str, network: str, values: str, input_shape: tuple[int, ...], num_outputs: int
) -> bool:
    with kept_generators(), replaced_weights():
        built = build(network, json.loads(values), input_shape, num_outputs, 0)
    return adaptations.get(name).suits(built)
