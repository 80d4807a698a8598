"""Groups of a split's examples, of a class and an attribute, and the accuracies of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment

NAMED = 64
"""The most groups of a dataset that are recorded one by one; of more, the worst alone is."""


@dataclass(frozen=True)
class Groups:
    """The groups of a split's examples: one for each pair of a class and a value of the attribute.

    Without attributes there is one value, so that a group is a class.
    """

    keys: Tensor
    """The group of each example, (n,), by its place in `counts`."""
    counts: Sequence[int]
    """How many examples each group has; the groups of a class stand together."""
    classes: Sequence[str]
    attributes: Sequence[str]
    """The values of the attribute; none where examples have none."""

    def metrics(self, found: Sequence[float]) -> Iterator[tuple[str, float, int]]:
        """Each metric's name, value and count of examples, from `found`, the `hits` of all groups.

        The balanced accuracy is the mean of the accuracies on the classes that the split has. With
        attributes there are the lowest accuracy of a group, and that of each, `accuracy[CLASS, VALUE]`.
        """
        values = max(1, len(self.attributes))
        recalls = []
        for start in range(0, len(self.counts), values):
            of_class = slice(start, start + values)
            if count := sum(self.counts[of_class]):
                recalls.append(sum(found[of_class]) / count)
        total = sum(self.counts)
        yield "balanced_accuracy", sum(recalls) / len(recalls), total
        if not self.attributes:
            return
        names = (f"accuracy[{c}, {a}]" for c in self.classes for a in self.attributes)
        groups = [
            (name, hit / count, count)
            for name, hit, count in zip(names, found, self.counts, strict=True)
            if count
        ]
        yield "worst_group_accuracy", min(value for _, value, _ in groups), total
        if len(self.counts) <= NAMED:
            yield from groups


def hits(keys: Tensor, right: Tensor, groups: int) -> Tensor:
    """How many examples of each group `right` (..., n) says 1 of, (..., groups), exact in float64.

    `keys` (..., n) are the examples' groups.
    """
    found = right.new_zeros(*right.shape[:-1], groups, dtype=torch.float64)
    return found.scatter_add_(-1, keys, right.double())


def groups_of(
    dataset: Dataset,
    environments: Mapping[str, Environment],
    splits: Mapping[str, Mapping[str, Tensor]],
) -> dict[str, dict[str, Groups]]:
    """The groups of every split that has examples, by environment; none unless targets are classes."""
    if not dataset.task.has_classes:
        return {}
    count = dataset.task.classes
    classes = dataset.classes or tuple(map(str, range(count)))
    found: dict[str, dict[str, Groups]] = {}
    for name, environment in environments.items():
        keys = environment.y.long()
        attributes: tuple[str, ...] = ()
        if environment.attributes is not None:
            attributes = dataset.attributes
            keys = dataset.task.groups(keys, environment.attributes, len(attributes))
        for split, index in splits[name].items():
            if len(index):
                own = keys[index]
                counts = torch.bincount(own, minlength=count * max(1, len(attributes))).tolist()
                of_split = Groups(own, counts, classes, attributes)
                found.setdefault(name, {})[split] = of_split
    return found
