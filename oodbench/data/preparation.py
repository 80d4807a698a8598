"""Between `Dataset.load` and a run: data are checked, inspected, and transformed by `Dataset.fit`."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from oodbench.data.pictures.folders import ImageFiles
from oodbench.data.streams import Changed, Stored, chunk_size, read
from oodbench.datasets import Dataset, Environment
from oodbench.errors import UserError, wrong_result

CHUNK = 4096
"""The number of examples in memory that are checked or hashed at a time."""
TOO_LARGE = re.compile("allocate memory|size calculation overflowed|Maximum allowed dimension")
"""Errors of torch and numpy for sizes that no memory can hold."""


def load_checked(dataset: Dataset, trial: int) -> dict[str, Environment]:
    """The environments of a trial, as `Dataset.load` returns them.

    Raises UserError, with the dataset, the environment and the mistake, unless the data fit into memory,
    the names are the dataset's, each class has one name, every input has a target, inputs in memory are
    finite, targets fit the task, and clusters, attributes, `out` and `unseen` fit the examples.
    """
    try:
        environments: Any = dataset.load(trial)
    except (MemoryError, RuntimeError, ValueError) as error:
        if not (isinstance(error, MemoryError) or TOO_LARGE.search(str(error))):
            raise
        raise UserError(f"{dataset.label}: its data need more memory than there is here") from error
    if not isinstance(environments, Mapping):
        raise wrong_result("load", dataset.label, "the environments by name", environments)
    if set(environments) != set(dataset.environments):
        raise UserError(
            f"{dataset.label}: `load` returns the environments {', '.join(environments)}, but "
            f"`environments` lists {', '.join(dataset.environments)}"
        )
    count = max(2, dataset.task.num_outputs)
    if dataset.classes and len(dataset.classes) != count:
        raise UserError(
            f"{dataset.label}: `classes` has {len(dataset.classes)} names, and there are {count} classes"
        )
    for name, environment in environments.items():
        if not isinstance(environment, Environment):
            wanted = f"an `Environment` for '{name}'"
            raise wrong_result("load", dataset.label, wanted, environment)
        mistake = _mistake(environment, dataset.attributes) or dataset.task.mistake(environment.y)
        if mistake is not None:
            raise UserError(f"{dataset.label}, environment '{name}': {mistake}")
    return dict(environments)


def fitted(
    dataset: Dataset, environments: dict[str, Environment], training: Mapping[str, Tensor]
) -> dict[str, Environment]:
    """The environments with inputs transformed by `Dataset.fit`.

    `training` holds the indices (n,) of the examples to fit, by environment. Raises UserError if inputs
    then do not have the dataset's `input_shape` or a type that networks take.
    """
    if fits(dataset):
        change = fit(dataset, environments, training)
        environments = dict(environments)
        for name, each in environments.items():
            x = Changed(each.x, change) if isinstance(each.x, Stored) else change(each.x)
            environments[name] = replace(each, x=x)
    for name, environment in environments.items():
        if not len(environment.y):
            continue
        where, x = f"{dataset.label}, environment '{name}':", _first(dataset, environment)
        if (shape := tuple(x.shape[1:])) != tuple(dataset.input_shape):
            wanted = f"the dataset's `input_shape` is {dataset.input_shape}"
            raise UserError(f"{where} an input has the shape {shape}, and {wanted}")
        if x.dtype not in (torch.float32, torch.int16, torch.int32, torch.int64):
            wanted = "torch.float32, or signed integers for words and atoms"
            raise UserError(f"{where} inputs are {wanted}, not {x.dtype}")
    return environments


def fit(
    dataset: Dataset, environments: Mapping[str, Environment], training: Mapping[str, Tensor]
) -> Callable[[Tensor], Tensor]:
    """The function that `Dataset.fit` estimates from the examples at `training`, (n,) by environment."""
    change = dataset.fit({name: part(environments[name], at) for name, at in training.items()})
    if not callable(change):
        raise wrong_result("fit", dataset.label, "a function of inputs", change)
    return change


def fits(dataset: Dataset) -> bool:
    """Whether the dataset defines `fit`."""
    return type(dataset).fit is not Dataset.fit


def is_discrete(dataset: Dataset, environments: Mapping[str, Environment]) -> bool:
    """Whether inputs are integers, such as ids of words; one example is read."""
    filled = next((e for e in environments.values() if len(e.y)), None)
    return filled is not None and not _first(dataset, filled).is_floating_point()


def _first(dataset: Dataset, environment: Environment) -> Tensor:
    first = read(environment.x, torch.zeros(1, dtype=torch.long))
    inputs: Any = dataset.transform(first, None)
    if not isinstance(inputs, Tensor):
        raise wrong_result("transform", dataset.label, "a tensor of inputs", inputs)
    return inputs


def _mistake(environment: Environment, attribute_names: Sequence[str]) -> str | None:
    x, attributes = environment.x, environment.attributes
    if not isinstance(x, Tensor | Stored):
        return f"inputs are a tensor or oodbench.data.streams.Stored, not {type(x).__name__}"
    flags = {"out": environment.out, "unseen": environment.unseen}
    parts = {"targets": environment.y, "clusters": environment.clusters, "attributes": attributes}
    for what, values in (parts | flags).items():
        if values is None:
            continue
        if not isinstance(values, Tensor):
            return f"`{what}` is a tensor, not {type(values).__name__}"
        if len(values) != len(x):
            return f"it has {len(x)} inputs and {len(values)} {what}"
        if what in flags and values.dtype != torch.bool:
            return f"`{what}` is true or false of each example, not {values.dtype}"
    for start, piece in enumerate(torch.split(x, CHUNK) if isinstance(x, Tensor) else ()):
        if not _is_finite(piece):
            odd = (~piece.flatten(1).isfinite().all(1)).nonzero()[0, 0]
            return f"the input of example {start * CHUNK + int(odd)} is not finite"
    if (attributes is None) != (not attribute_names):
        return "it lacks attributes that the dataset names, or has attributes without names"
    if attributes is None:
        return None
    if attributes.dtype != torch.int64:
        return f"attributes are torch.int64, not {attributes.dtype}"
    odd = attributes[(attributes < 0) | (attributes >= len(attribute_names))]
    wanted = f"one of 0 to {len(attribute_names) - 1}"
    return f"an example has the attribute {int(odd[0])}, not {wanted}" if len(odd) else None


def _is_finite(x: Tensor) -> bool:
    if not x.is_floating_point():
        return True
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())  # a sum is ten times faster


def part(environment: Environment, index: Tensor) -> Environment:
    """The examples of an environment at `index` (n,): inputs, targets, attributes and clusters."""
    attributes, clusters = environment.attributes, environment.clusters
    return Environment(
        environment.x[index],
        environment.y[index],
        attributes=None if attributes is None else attributes[index],
        clusters=None if clusters is None else clusters[index.to(clusters.device)],
    )


FEW = 10
"""The most classes or targets of an environment that are listed one by one."""


@dataclass(frozen=True)
class Contents:
    """An environment whose examples have all been read."""

    name: str
    examples: Environment
    hashes: Sequence[bytes | None]
    """A hash of each example's inputs; None for an example that cannot be read."""
    unreadable: Sequence[str]
    """The error of each example that cannot be read."""
    repeated: int
    """The number of examples with the same inputs as an earlier example; 0 if the dataset's inputs repeat
    by design."""

    @property
    def size(self) -> int:
        """The number of examples."""
        return len(self.examples.y)


def inspect(dataset: Dataset) -> list[Contents]:
    """Read every example of every environment in the first trial.

    Raises UserError for data that cannot be loaded, do not fit their task, or leave nothing to train on.
    """
    environments, every = load_checked(dataset, 0), []
    for name, examples in environments.items():
        hashes, unreadable = hashes_of(examples)
        known = [each for each in hashes if each is not None]
        repeated = 0 if dataset.repeats else len(known) - len(set(known))
        every.append(Contents(name, examples, hashes, unreadable, repeated))
    if not any(contents.unreadable for contents in every):
        held_out = {*dataset.test_environments, *dataset.validation_environments}
        if not (training := dataset.trainable(held_out)):
            names = ", ".join(name for name in dataset.environments if name in held_out)
            every_one = len(dataset.environments) == 1
            why = f"{names} is its only environment" if every_one else f"{names} are held out"
            raise UserError(f"{dataset.label}: {why}, so nothing is left to train on")
        if dataset.columns is None:  # fitting a table imports scikit-learn, and cannot fail
            some = {n: torch.arange(min(CHUNK, len(environments[n].y))) for n in training}
            fitted(dataset, environments, some)
    return every


def hashes_of(environment: Environment) -> tuple[list[bytes | None], list[str]]:
    """A hash of each example's inputs, None if they cannot be read, and the errors of reading."""
    x, count = environment.x, len(environment.y)
    hashes, unreadable = list[bytes | None](), list[str]()
    size = chunk_size(x) if isinstance(x, Stored) else CHUNK
    for start in range(0, count, size):
        chunk = range(start, min(start + size, count))
        try:
            hashes += _digests(x, chunk)
        except UserError:
            for i in chunk:
                try:
                    hashes += _digests(x, range(i, i + 1))
                except UserError as error:
                    unreadable.append(str(error))
                    hashes.append(None)
    return hashes, unreadable


def _digests(x: Tensor | Stored, chunk: range) -> list[bytes]:
    index = torch.arange(chunk.start, chunk.stop)
    if isinstance(x, ImageFiles):
        return x.digests(index)
    inputs = x.read(index) if isinstance(x, Stored) else x[chunk.start : chunk.stop]  # a view
    if not _is_finite(inputs):
        raise UserError(f"the inputs of example {chunk.start} are not finite")
    rows = inputs.reshape(len(inputs), -1).contiguous().numpy()
    return [hashlib.sha256(row).digest()[:16] for row in rows]


def class_names(dataset: Dataset) -> tuple[str, ...]:
    """The names of the classes, or their numbers if they have no names."""
    return dataset.classes or tuple(map(str, range(dataset.task.classes)))


def group_names(dataset: Dataset) -> tuple[str, ...]:
    """The names of the groups in the order of `Task.groups`; empty without attributes."""
    if not dataset.task.has_classes:
        return dataset.attributes
    return tuple(f"{c}, {a}" for c in class_names(dataset) for a in dataset.attributes)


def group_sizes(dataset: Dataset, environment: Environment) -> dict[str, int]:
    """The number of examples of each group, by its name; empty without attributes."""
    if environment.attributes is None:
        return {}
    names = group_names(dataset)
    numbers = dataset.task.groups(environment.y, environment.attributes, len(dataset.attributes))
    return dict(zip(names, torch.bincount(numbers, minlength=len(names)).tolist(), strict=True))


def balance(dataset: Dataset, y: Tensor) -> str:
    """The share of each class among targets, or the mean and standard deviation of real targets."""
    task, classes = dataset.task, dataset.classes
    if not task.has_classes:
        numbers = y.double().flatten(1)
        if numbers.shape[1] > FEW:
            return f"{numbers.shape[1]} targets each"
        means = numbers.nanmean(0)
        deviations = (numbers - means).square().nanmean(0).sqrt()
        return ", ".join(f"{m:.3g} ± {s:.2g}" for m, s in zip(means, deviations, strict=True))
    shares = 100 * torch.bincount(y.long(), minlength=task.classes) / max(1, len(y))
    if len(shares) > FEW:
        ends = (int(shares.argmin()), int(shares.argmax()))
        rarest, commonest = (f" ({classes[i]})" if classes else "" for i in ends)
        low, high = f"{shares.min():.2g} %{rarest}", f"{shares.max():.2g} %{commonest}"
        return f"{len(shares)} classes, {low} to {high}"
    if classes:
        return ", ".join(f"{c} {s:.1f} %" for c, s in zip(classes, shares.tolist(), strict=True))
    return ", ".join(f"{share:.1f}" for share in shares.tolist()) + " %"
