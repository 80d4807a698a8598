from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from oodbench.datasets.spirals import Spirals

from oodbench.datasets import Dataset, Environment, datasets, make, register
from oodbench.errors import UserError
from oodbench.tasks import Task

COLORED: dict[str, object] = {"label_noise": 0.1, "flips": [0.2, 0.1, 0.5], "grayscale": True}
CHANGES: dict[str, dict[str, object]] = {
    "Spirals": {
        **{"num_environments": 3, "num_validation": 2, "num_examples": 50, "num_test_examples": 60},
        **{"shortcut_dims": 5, "shortcut_scale": 0.5, "standardize": False, "num_revolutions": 2},
        "as_test": True,
    },
    "LinearSEM": {
        **{"variant": "PES", "scales": [0.2, 2.0, 4.0], "num_examples": 50, "dim": 3},
        **{"unit_weights": False, "as_test": True},
    },
    "ColoredDigits": {**COLORED, "copies": 3},
}
EVERY = [(name, option) for name, changes in CHANGES.items() for option in changes]


def differ(a: Mapping[str, Environment], b: Mapping[str, Environment]) -> bool:
    """Whether any name, input or target differs."""
    pairs = [(a[n], b[n]) for n in a if n in b]
    alike = all(torch.equal(one.x, other.x) and torch.equal(one.y, other.y) for one, other in pairs)
    return list(a) != list(b) or not alike


DRAWN = (
    *(*CHANGES, "DigitsOnBackgrounds", "Flights", "IRMExample"),
    *("InformedDigits", "LinearUnitTests", "RotatedDigits"),
)
"""Datasets that need no files of the user's, and whose trials have other inputs and targets."""


@pytest.mark.parametrize("name", DRAWN)
def test_a_trial_is_reproducible_and_unlike_another(name: str) -> None:
    loaded: list[dict[str, Environment]] = []
    for trial in (0, 0, 1):
        torch.manual_seed(len(loaded))  # which no data depend on
        loaded.append(make(name, {}).load(trial))
    first, same, other = loaded
    assert not differ(first, same)
    for environment, data in first.items():
        assert not torch.equal(data.x, other[environment].x)
        assert not torch.equal(data.y, other[environment].y)


@pytest.mark.parametrize(("name", "option"), EVERY)
def test_every_option_changes_the_data(name: str, option: str) -> None:
    changed = {option: CHANGES[name][option]}
    assert differ(make(name, {}).load(0), make(name, changed).load(0))
    assert not differ(make(name, changed).load(0), make(name, changed).load(0))


@pytest.mark.parametrize("name", CHANGES)
def test_every_option_is_among_the_changes(name: str) -> None:
    assert {f.name for f in fields(datasets.get(name).Options)} == set(CHANGES[name])


def test_label_names_the_options_that_were_changed() -> None:
    assert make("Spirals", {"shortcut_dims": 16}).label == "Spirals"
    assert make("LinearSEM", {"variant": "FES"}).label == "LinearSEM(variant=FES)"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"environments": None}, "^the dataset Mine does not set `environments`, the names of all"),
        ({"test_environments": None}, r"`test_environments`, the names .* held out .*\('c',\)$"),
        ({"input_shape": None}, r"does not set `input_shape`, the shape of one input"),
        ({"task": None}, r"does not set `task`, what is predicted, such as Task\('binary'\)"),
        ({"test_environments": "b"}, "^`test_environments` of Mine must be a tuple, not 'b'$"),
        ({"task": "binary"}, "^`task` of Mine must be a Task, not 'binary'$"),
    ],
)
def test_an_attribute_that_a_dataset_does_not_set_is_named(
    monkeypatch: pytest.MonkeyPatch, body: dict[str, object], sentence: str
) -> None:
    given = {"environments": ("a", "b"), "test_environments": ("b",), "input_shape": (1,)}
    values = given | {"task": Task("binary"), "load": lambda self, trial: {}} | body
    mine = type("Mine", (Dataset,), {k: v for k, v in values.items() if v is not None})
    monkeypatch.setattr(datasets, "_classes", dict(datasets.items()))
    register("Mine")(mine)
    with pytest.raises(UserError, match=sentence):
        make("Mine", {})


class Mirrored(Spirals):  # type: ignore[misc]
    def __init__(self, options: object, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.column, self.angle, self._repeat = 0, 90, True
        self.test_environments = tuple(self.environments[self.column :])


@pytest.mark.parametrize(
    ("name", "meant"), [("repaets", "repeats"), ("test_enviroments", "test_environments")]
)
def test_a_misspelt_attribute_of_an_instance_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    class Mine(Mirrored):
        def __init__(self, options: object, data_dir: Path | None = None) -> None:
            super().__init__(options, data_dir)
            setattr(self, name, True)

    monkeypatch.setattr(datasets, "_classes", dict(datasets.items()))
    register("Mirrored")(Mirrored)
    register("Mine")(Mine)
    assert make("Mirrored", {}).test_environments
    with pytest.raises(UserError, match=f"^the dataset Mine sets `self.{name}`, .* `self.{meant}`"):
        make("Mine", {})


def test_a_forgotten_init_of_the_base_class_is_named() -> None:
    class Mine(Spirals):  # type: ignore[misc]
        def __init__(self, options: object, data_dir: Path | None = None) -> None:
            pass

    with pytest.raises(UserError, match=r"of the dataset Mine must first call `super\(\).__init__"):
        _ = Mine({}).changed_options
