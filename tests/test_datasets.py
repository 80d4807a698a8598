from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from oodbench.datasets import Dataset, Environment, Metadata, datasets, make, md5
from oodbench.errors import UserError
from oodbench.networks.base import networks
from oodbench.tasks import Task

COLORED: dict[str, object] = {"label_noise": 0.1, "flips": [0.2, 0.1, 0.5], "grayscale": True}
CHANGES: dict[str, dict[str, object]] = {
    "Spirals": {
        "num_environments": 3,
        "num_validation": 2,
        "num_examples": 50,
        "num_test_examples": 60,
        "shortcut_dims": 5,
        "shortcut_scale": 0.5,
        "standardize": False,
        "num_revolutions": 2,
        "as_test": True,
    },
    "LinearSEM": {
        "variant": "PES",
        "scales": [0.2, 2.0, 4.0],
        "num_examples": 50,
        "dim": 3,
        "unit_weights": False,
        "as_test": True,
    },
    "ColoredDigits": {**COLORED, "copies": 3},
}
EVERY = [(name, option) for name, changes in CHANGES.items() for option in changes]


def differ(a: Mapping[str, Environment], b: Mapping[str, Environment]) -> bool:
    """Whether any name, input or target differs."""
    return list(a) != list(b) or not all(
        torch.equal(a[n].x, b[n].x) and torch.equal(a[n].y, b[n].y) for n in a
    )


@pytest.mark.parametrize("name", CHANGES)
def test_environments_are_what_the_dataset_says(name: str) -> None:
    dataset = make(name, {})
    environments = dataset.load(0)
    assert tuple(environments) == dataset.environments
    held_out = {*dataset.test_environments, *dataset.validation_environments}
    assert dataset.test_environments
    assert held_out < set(dataset.environments)
    for environment in environments.values():
        x, y = environment.x, environment.y
        assert x.dtype == y.dtype == torch.float32
        assert x.is_contiguous() and y.is_contiguous()
        assert x.shape[1:] == dataset.input_shape
        assert len(x) == len(y)
        losses = dataset.task.losses(torch.zeros(len(x), dataset.task.num_outputs), y)
        assert losses.shape == (len(x),)


@pytest.mark.parametrize("name", CHANGES)
def test_a_trial_is_reproducible_and_unlike_another(name: str) -> None:
    first, same, other = (make(name, {}).load(trial) for trial in (0, 0, 1))
    for environment, data in first.items():
        assert torch.equal(data.x, same[environment].x)
        assert torch.equal(data.y, same[environment].y)
        assert not torch.equal(data.x, other[environment].x)
        assert not torch.equal(data.y, other[environment].y)


@pytest.mark.parametrize("name", CHANGES)
def test_loading_does_not_depend_on_the_global_generator(name: str) -> None:
    torch.manual_seed(1)
    first = make(name, {}).load(0)
    torch.manual_seed(2)
    assert not differ(first, make(name, {}).load(0))


@pytest.mark.parametrize(("name", "option"), EVERY)
def test_every_option_changes_the_data(name: str, option: str) -> None:
    changed = {option: CHANGES[name][option]}
    assert differ(make(name, {}).load(0), make(name, changed).load(0))
    assert not differ(make(name, changed).load(0), make(name, changed).load(0))


@pytest.mark.parametrize("name", CHANGES)
def test_every_option_is_among_the_changes(name: str) -> None:
    assert {f.name for f in fields(datasets.get(name).Options)} == set(CHANGES[name])


@pytest.mark.parametrize("name", ["ColoredDigits", "ColoredMNIST", "LinearSEM", "Spirals"])
def test_metadata(name: str) -> None:
    assert name in list(datasets)
    metadata = datasets.get(name).metadata
    assert metadata.paper.startswith("arXiv:")
    assert metadata.network in list(networks)
    assert metadata.steps > 0


def test_label_names_the_options_that_were_changed() -> None:
    assert make("Spirals", {"shortcut_dims": 16}).label == "Spirals"
    assert make("LinearSEM", {"variant": "FES"}).label == "LinearSEM(variant=FES)"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Spiral", {}, "unknown dataset 'Spiral'; did you mean Spirals"),
        ("Spirals", {"shortcut_dim": 3}, "unknown name 'shortcut_dim' in the options of Spirals"),
        ("Spirals", {"num_examples": "many"}, "'num_examples' in the options of Spirals must be"),
        ("Spirals", {"num_environments": 0}, "must be between 1 and 10000, not 0"),
        ("ColoredDigits", {"label_noise": 2}, "must be between 0.0 and 1.0, not 2.0"),
        ("ColoredMNIST", {"copies": 2}, "unknown name 'copies' in the options of ColoredMNIST"),
        ("ColoredDigits", {"flips": 0.1}, "'flips' in the options of ColoredDigits must be a list"),
    ],
)
def test_wrong_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make(name, options)
    assert message in str(caught.value)


class Filed(Dataset):
    """A dataset that reads one file."""

    name = "Filed"
    metadata = Metadata(
        paper="",
        licence="",
        family="",
        shift="",
        network="MLP",
        steps=1,
        checksums={"sub/file": "5d41402abc4b2a76b9719d911017c592"},  # of "hello"
    )
    environments = ("a", "b")
    test_environments = ("b",)
    input_shape = (1,)
    task = Task("binary")

    def load(self, trial: int) -> dict[str, Environment]:
        raise NotImplementedError


def test_check_of_files(tmp_path: Path) -> None:
    dataset = Filed(Filed.Options(), tmp_path)
    with pytest.raises(UserError, match="sub/file is missing"):
        dataset.check()
    file = tmp_path / "sub" / "file"
    file.parent.mkdir()
    file.write_text("hello")
    dataset.check()
    file.write_text("hello!")
    with pytest.raises(UserError, match="sub/file is damaged"):
        dataset.check()


def test_md5(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert md5(tmp_path / "empty") == "d41d8cd98f00b204e9800998ecf8427e"


def test_nothing_to_download(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Spirals has nothing to download"):
        make("Spirals", {}).download(tmp_path)


@pytest.mark.parametrize("option", COLORED)
def test_every_option_changes_mnist(option: str, mnist_dir: Path) -> None:
    changed = make("ColoredMNIST", {option: COLORED[option]}, mnist_dir)
    assert differ(make("ColoredMNIST", {}, mnist_dir).load(0), changed.load(0))
    assert {f.name for f in fields(datasets.get("ColoredMNIST").Options)} == set(COLORED)


def test_mnist_trials(mnist_dir: Path) -> None:
    first, same, other = (make("ColoredMNIST", {}, mnist_dir).load(trial) for trial in (0, 0, 1))
    assert not differ(first, same)
    for name, environment in first.items():
        assert environment.x.is_contiguous()
        assert environment.x.dtype == environment.y.dtype == torch.float32
        assert not torch.equal(environment.y, other[name].y)
