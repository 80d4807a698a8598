"""Small networks and pretrained ones learn from small pictures at default learning rates."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets, make
from oodbench.hparams import draw
from oodbench.sweep.plan import single
from tests.helpers.results.sweeps import ended
from tests.networks.test_vision import resnet_file

SIDE = 16
NAMES = ("zero", "one", "two", "three")


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scans of four digits in three environments that differ in brightness, ROOT/ENVIRONMENT/DIGIT."""
    from sklearn.datasets import load_digits

    root = tmp_path_factory.mktemp("scans")
    bunch = load_digits()
    for digit, name in enumerate(NAMES):
        images = bunch.images[bunch.target == digit][:72]
        for i, image in enumerate(images):
            environment = ("bright", "dim", "dark")[i % 3]
            bytes_ = np.uint8(image / 16 * {"bright": 255, "dim": 200, "dark": 150}[environment])
            folder = root / environment / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(bytes_).resize((SIDE, SIDE)).save(folder / f"{i}.png")
    return root


def planned(root: Path, network: dict[str, Any], **keys: Any) -> Any:
    """The one run on the scans, planned as a user would."""
    keys = {"network": network, "steps": 40, "evaluate_every": 40} | keys
    return single({"name": "ImageFolder"}, {"name": "ERM"}, root, **keys)


@pytest.mark.slow
def test_rates_and_augmentation_follow_the_network(scans: Path, tmp_path: Path) -> None:
    weights = str(resnet_file(tmp_path / "resnet18.pth"))
    small = planned(scans, {"name": "ConvNet"})
    random = planned(scans, {"name": "ResNet18", "hparams": {"weights": "none"}})
    tuned = planned(scans, {"name": "ResNet18", "hparams": {"weights": weights}})
    assert [spec.hparams["lr"] for spec in (small, random, tuned)] == [1e-3, 1e-3, 5e-5]
    assert [spec.options["augment"] for spec in (small, random, tuned)] == [False, False, True]
    assert [spec.network_hparams["freeze_batch_norm"] for spec in (random, tuned)] == [False, True]
    keys: dict[str, Any] = {"hparam_draws": [1], "shared_quantiles": False}
    drawn = planned(scans, {"name": "ConvNet"}, **keys).hparams["lr"]
    # of data without a family
    assert drawn == pytest.approx(draw(algorithms.get("ERM").Hparams, "ERM", 1)["lr"])
    given = planned(scans, {"name": "ConvNet"}, datasets=[{"name": "ImageFolder", "augment": True}])
    assert given.options["augment"] is True


def test_the_size_is_that_of_the_files(scans: Path) -> None:
    dataset = make("ImageFolder", {}, scans)
    assert dataset.input_shape == (3, SIDE, SIDE) and dataset.label == "ImageFolder"
    assert planned(scans, {"name": "ConvNet"}).options["size"] == SIDE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "network"),
    [
        pytest.param(*pair, marks=[pytest.mark.nightly] * (pair != ("images", "ConvNet")))
        for pair in itertools.product(
            ("images", "small_images", "digits", "noisy_labels"), ("ConvNet", "ResNet18")
        )
    ],
)
def test_the_defaults_beat_the_constant_answer(
    family: str, network: str, scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = datasets.get("ImageFolder")
    monkeypatch.setattr(cls, "metadata", replace(cls.metadata, family=family))
    hparams = {} if network == "ConvNet" else {"weights": "none"}
    component = {"name": network, "hparams": hparams}
    *_, last = ended(planned(scans, component), tmp_path / "run", data_dir=scans).records()
    accuracy = [
        e["value"] for e in last["evaluations"] if e["metric"] == "accuracy" and e["split"] == "out"
    ]
    constant = 1 / len(NAMES)
    assert min(accuracy) > 1.5 * constant
