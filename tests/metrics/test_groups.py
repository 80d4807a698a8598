"""Metrics of groups, against scikit-learn's and against counting by hand."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score
from torch import Tensor

from oodbench.datasets import Dataset, Environment
from oodbench.metrics import is_higher_better
from oodbench.tasks import Task
from oodbench.train.evaluate import Scored, evaluate
from oodbench.train.loading import groups_of
from oodbench.train.vectorized.program import evaluate_vectorized

Environments = dict[str, Environment]
Splits = Mapping[str, Mapping[str, Tensor]]


class Birds(Dataset):
    """Targets and an attribute, as a dataset has them."""

    environments = ("a",)
    test_environments = ("a",)
    input_shape = (3,)
    attributes = ("land", "water")

    def __init__(self, classes: int) -> None:
        super().__init__(self.Options())
        self.task = Task("multiclass", classes)
        self.classes = ("wren", "duck", "gull")[:classes] if classes <= 3 else ()

    def load(self, trial: int) -> Environments:
        raise AssertionError("not read")


def data(
    count: int, classes: int, seed: int = 0, attributes: bool = True
) -> tuple[Environments, Splits]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (count,), generator=generator)
    attribute = (torch.rand(count, generator=generator) < 0.8).long() if attributes else None
    x = torch.randn(count, classes, generator=generator)
    splits = {"a": {"in": torch.arange(0, count, 2), "out": torch.arange(1, count, 2)}}
    return {"a": Environment(x, y, attributes=attribute)}, splits


def scores(
    environments: Environments, splits: Splits, classes: int = 3
) -> dict[str, dict[str, tuple[float, int]]]:
    """Each metric's value and count, by split, of the logits that the inputs are."""
    groups, task = groups_of(Birds(classes), environments, splits), Task("multiclass", classes)
    values: dict[str, dict[str, tuple[float, int]]] = {}
    for e in evaluate(lambda x: x, Scored(environments, splits, task, groups)):
        values.setdefault(str(e.split), {})[e.metric] = e.value, e.count
    return values


def test_balanced_accuracy_and_groups_are_scikit_learns() -> None:
    environments, splits = data(400, 3)
    environment = environments["a"]
    assert environment.attributes is not None
    for split, index in splits["a"].items():
        y, guess = environment.y[index].numpy(), environment.x[index].argmax(1).numpy()
        attribute = environment.attributes[index].numpy()
        got = scores(environments, splits)[split]
        balanced, count = got["balanced_accuracy"]
        assert balanced == pytest.approx(balanced_accuracy_score(y, guess), abs=1e-12)
        assert count == 200
        each = {}
        for c, name in enumerate(("wren", "duck", "gull")):
            for a, place in enumerate(("land", "water")):
                own = (y == c) & (attribute == a)
                accuracy = accuracy_score(y[own], guess[own])
                each[f"accuracy[{name}, {place}]"] = (accuracy, int(own.sum()))
        assert {k: v for k, v in got.items() if "[" in k} == each
        assert got["worst_group_accuracy"][0] == min(value for value, _ in each.values())
        mean = sum(value for value, _ in each.values()) / len(each)
        assert got["adjusted_accuracy"][0] == pytest.approx(mean, abs=1e-12)
        assert all(is_higher_better(name) for name in got if "accuracy" in name)
        recalls = recall_score(y, guess, average=None)
        assert got["worst_class_accuracy"][0] == pytest.approx(recalls.min(), abs=1e-12)


def test_without_attributes_there_are_no_groups() -> None:
    got = scores(*data(40, 3, attributes=False))
    assert set(got["in"]) == {"accuracy", "loss", "brier", "balanced_accuracy"}


def test_classes_that_a_split_lacks_do_not_count() -> None:
    x, y = torch.eye(3)[[0, 1, 1, 0]], torch.tensor([0, 0, 1, 1])
    environments = {"a": Environment(x, y, attributes=torch.zeros(4, dtype=torch.long))}
    splits = {"a": {"in": torch.arange(4), "out": torch.arange(0)}}
    by_split = scores(environments, splits)
    got = by_split["in"]
    wanted = {"accuracy[wren, land]": (0.5, 2), "accuracy[duck, land]": (0.5, 2)}
    assert got["adjusted_accuracy"] == got["worst_class_accuracy"] == (0.5, 4)
    assert {k: v for k, v in got.items() if "[" in k} == wanted
    assert got["balanced_accuracy"] == (0.5, 4) and "out" not in by_split


def test_vectorized_predictors_have_the_values_of_each_alone() -> None:
    """Also where the data of one lack a group that another's have."""
    task, dataset = Task("multiclass", 3), Birds(3)
    sets = [data(60, 3, seed) for seed in range(3)]
    places = sets[0][1]
    first = sets[0][0]["a"]
    sets[0][0]["a"] = replace(first, attributes=torch.ones(60, dtype=torch.long))
    groups = [groups_of(dataset, environments, places) for environments, _ in sets]
    scored = [Scored(e, places, task, g) for (e, _), g in zip(sets, groups, strict=True)]
    found = evaluate_vectorized(lambda x, rows: x, scored)
    alone = [evaluate(lambda x: x, each) for each in scored]
    names = [[(e.metric, e.count) for e in of_run] for of_run in found]
    assert names == [[(e.metric, e.count) for e in of_run] for of_run in alone]
    assert names[0] != names[1]
    for one, other in zip(found, alone, strict=True):
        assert np.allclose([e.value for e in one], [e.value for e in other], rtol=1e-12)
