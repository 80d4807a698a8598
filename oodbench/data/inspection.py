"""What is in a dataset: sizes, balance, what cannot be read, and what environments share."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from oodbench.data import facts
from oodbench.data.preparation import CHUNK, fitted, is_finite, load_checked
from oodbench.data.streams import Stored, chunk_size
from oodbench.datasets import Dataset, Environment
from oodbench.errors import UserError
from oodbench.tasks import Task

FEW = 10
"""Up to so many classes or targets of an environment are listed one by one."""


@dataclass(frozen=True)
class Contents:
    """The contents of one environment."""

    name: str
    size: int
    balance: str
    """The share of each class, or mean and standard deviation of real targets."""
    groups: dict[str, int] = field(default_factory=dict)
    """The number of examples of each group, by its name, empty ones too; where examples have an
    attribute."""
    unreadable: list[str] = field(default_factory=list)
    """What is wrong with each example that cannot be read."""
    repeated: int = 0
    """The number of examples whose inputs, bit for bit, an earlier example of the environment has.
    It stays 0 for a dataset whose inputs repeat by design."""
    shared: dict[str, int] = field(default_factory=dict)
    """The number of different inputs that another environment has too, by its name; it is empty for
    a dataset whose inputs repeat by design."""


def inspect(dataset: Dataset, trial: int = 0) -> list[Contents]:
    """Read every example of a trial once; returns the contents of the environments in their order.

    Raises UserError for data that cannot be loaded at all, or that do not fit their task.
    """
    found, hashes = [], {}
    environments = load_checked(dataset, trial)
    for name, environment in environments.items():
        unreadable: list[str] = []
        read = [hash_ for hash_ in _hashes(environment, unreadable) if hash_ is not None]
        hashes[name] = set(read)
        balance = _balance(environment.y, dataset.task, dataset.classes)
        repeated = 0 if facts.repeats(dataset) else len(read) - len(hashes[name])
        groups = _group_sizes(dataset, environment)
        found.append(Contents(name, len(environment.y), balance, groups, unreadable, repeated))
    for contents in () if facts.repeats(dataset) else found:
        for other, theirs in hashes.items():
            count = len(hashes[contents.name] & theirs)
            if count and other != contents.name:
                contents.shared[other] = count
    if not any(contents.unreadable for contents in found):
        held_out = {*dataset.test_environments, *dataset.validation_environments}
        places = {
            n: torch.arange(len(environments[n].y))
            for n in facts.training_environments(dataset, held_out)
        }
        fitted(dataset, environments, places)
    return found


def _hashes(environment: Environment, unreadable: list[str]) -> Iterator[bytes | None]:
    """The hash of each example's inputs, None where it cannot be read or is not finite."""
    x, count = environment.x, len(environment.y)
    size = chunk_size(x) if isinstance(x, Stored) else CHUNK
    for start in range(0, count, size):
        places = torch.arange(start, min(start + size, count))
        try:
            yield from map(_hash, _read(x, places))
        except UserError:
            for place in places:
                try:
                    yield from map(_hash, _read(x, place[None]))
                except UserError as error:
                    unreadable.append(str(error))
                    yield None


def _read(x: Tensor | Stored, places: Tensor) -> Tensor:
    found = x.read(places) if isinstance(x, Stored) else x[places]
    if not is_finite(found):
        raise UserError(f"the inputs of example {int(places[0])} are not finite")
    return found


def _hash(example: Tensor) -> bytes:
    return hashlib.sha256(example.contiguous().numpy().tobytes()).digest()[:16]


def _group_sizes(dataset: Dataset, environment: Environment) -> dict[str, int]:
    if environment.attributes is None:
        return {}
    names = facts.group_names(dataset)
    number = dataset.task.groups(environment.y, environment.attributes, len(dataset.attributes))
    sizes = torch.bincount(number, minlength=len(names)).tolist()
    return dict(zip(names, sizes, strict=True))


def _balance(y: Tensor, task: Task, classes: Sequence[str]) -> str:
    """What `Contents.balance` says of targets (N, ...); classes without a name are not named."""
    if not task.has_classes:
        numbers = y.double().flatten(1)
        if numbers.shape[1] > FEW:
            return f"{numbers.shape[1]} targets each"
        spread = zip(
            numbers.nanmean(0).tolist(), numbers.std(0, correction=0).tolist(), strict=True
        )
        return ", ".join(f"{m:.3g} ± {s:.2g}" for m, s in spread)
    shares = 100 * torch.bincount(y.long(), minlength=task.classes) / max(1, len(y))
    if len(shares) > FEW:
        places = (int(shares.argmin()), int(shares.argmax()))
        rarest, commonest = (f" ({classes[i]})" if classes else "" for i in places)
        low, high = f"{shares.min():.2g} %{rarest}", f"{shares.max():.2g} %{commonest}"
        return f"{len(shares)} classes, {low} to {high}"
    if classes:
        return ", ".join(f"{c} {s:.1f} %" for c, s in zip(classes, shares.tolist(), strict=True))
    return ", ".join(f"{share:.1f}" for share in shares.tolist()) + " %"
