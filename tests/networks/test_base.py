import copy
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

from oodbench.errors import UserError
from oodbench.hparams import defaults, identity
from oodbench.networks.base import Perturbation, build, networks
from oodbench.registry import load_plugins
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from tests.helpers.paths import blocks
from tests.helpers.results.sweeps import ended

IMAGES = ("ConvNet", "FastResNet", "MNISTCNN", "ResNet18", "ResNet50")
TEXTS = ("DistilBERT", "TextCNN", "TextModel")
ELSEWHERE = ("DenseNet121", "GIN", "FasterRCNN", "CodeGPT", "timm", "CLIP")
OTHERS = [name for name in networks if name not in (*TEXTS, *ELSEWHERE)]
"""Those that take images of 8 x 8 pixels, or anything."""


@pytest.mark.parametrize(
    ("name", "shape"),
    [(n, s) for n in OTHERS for s in ((3,), (2, 8, 9)) if n not in IMAGES or len(s) == 3],
)
def test_the_parts_have_the_promised_shapes(name: str, shape: tuple[int, ...]) -> None:
    network = build(name, {}, shape, 3, seed=0)
    network.eval()
    x = torch.randn(5, *shape)
    features = network.featurizer(x)
    assert features.shape == (5, network.num_features)
    assert network(x).shape == (5, 3)
    assert torch.equal(network(x), network.classifier(features))


@pytest.mark.parametrize(
    ("name", "shape"),
    [*((n, (2, 8, 8)) for n in OTHERS), ("TextCNN", (7,)), ("DenseNet121", (8, 32, 32))],
)
def test_weights_depend_on_the_seed_alone(name: str, shape: tuple[int, ...]) -> None:
    def weights(seed: int) -> Tensor:
        return nn.utils.parameters_to_vector(build(name, {}, shape, 2, seed).parameters())

    torch.manual_seed(123)
    first = weights(0)
    torch.manual_seed(456)
    assert torch.equal(first, weights(0))
    if name != "Linear":
        assert not torch.equal(first, weights(1))


REGULARIZERS = {"dropout": 0.5, "input_dropout": 0.5, "input_noise": 0.5, "hidden_noise": 0.5}
WITH_OWN_DROPOUT = ("MLP", "ResNet18", "ResNet50", "DenseNet121", "timm", "CodeGPT", "GIN")


@pytest.mark.parametrize("name", list(networks))
def test_regularizers_that_are_off_are_not_in_the_identity(name: str) -> None:
    space = networks.get(name).Hparams
    new = REGULARIZERS.keys() - ({"dropout"} if name in WITH_OWN_DROPOUT else set())
    assert not new & identity(space, defaults(space)).keys()
    assert identity(space, {key: 0.25 for key in new}).keys() == new


def training_output(network: nn.Module, x: Tensor, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    output: Tensor = network.train()(x)
    return output


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(n, o, marks=[pytest.mark.nightly] * (n == "ResNet50"))  # a larger ResNet18
        for n in OTHERS
        for o in REGULARIZERS
        if o != "dropout" or n not in WITH_OWN_DROPOUT
    ],
)
def test_every_network_takes_regularizers_in_training_alone(name: str, option: str) -> None:
    plain = build(name, {}, (2, 8, 8), 3, 0)
    assert not any(isinstance(m, Perturbation) for m in plain.modules())
    network = build(name, {option: REGULARIZERS[option]}, (2, 8, 8), 3, 0)
    torch.testing.assert_close(network.state_dict(), plain.state_dict(), rtol=0, atol=0)
    x = torch.randn(4, 2, 8, 8)
    first = training_output(network, x)
    assert not torch.equal(first, training_output(plain, x))
    assert not torch.equal(first, training_output(network, x, seed=2))
    twin = copy.deepcopy(network)
    network.load_state_dict(plain.state_dict())
    assert torch.equal(network.eval()(x), plain.eval()(x))
    assert not torch.equal(training_output(twin, x), training_output(twin, x, seed=2))
    network.train()
    network.featurizer.eval()  # as in steps that train the classifier alone
    plain.train()
    plain.featurizer.eval()
    assert torch.equal(network(x), plain(x))


def test_noise_and_dropout_are_as_large_as_they_say() -> None:
    x = torch.randn(200, 100, dtype=torch.float64)
    noise = training_output(build("Head", {"input_noise": 0.5}, (100,), 100, 0).featurizer, x) - x
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)
    kept = training_output(build("Head", {"input_dropout": 0.2}, (100,), 100, 0).featurizer, x)
    assert float((kept == 0).double().mean()) == pytest.approx(0.2, abs=0.01)
    torch.testing.assert_close(kept[kept != 0], (x / 0.8)[kept != 0])
    network = build("MLP", {"width": 300, "depth": 1, "hidden_noise": 0.1}, (100,), 1, 0).double()
    hidden = network.featurizer.train()(x) - network.featurizer.eval()(x)
    assert float(hidden.detach().std()) == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("option", ["input_dropout", "input_noise"])
def test_ids_take_no_noise(option: str) -> None:
    network = build("TextCNN", {option: 0.5}, (7,), 2, 0)
    with pytest.raises(UserError, match="inputs that are ids take neither"):
        network(torch.ones(2, 7, dtype=torch.long))
    assert network.eval()(torch.ones(2, 7, dtype=torch.long)).shape == (2, 2)


def test_the_guides_network_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = "docs/guide/add_network.md"
    (code,) = blocks(guide)
    assert len(code.splitlines()) <= 12
    (tmp_path / "guide_network.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(networks, "_classes", dict(networks._classes))
    load_plugins(["guide_network"])
    values = yaml.safe_load(blocks(guide, "yaml")[0]) | {"steps": 5}
    first = next(iter(make_plan(validate(values, "add_network.md")).runs.values()))
    ended(first, tmp_path / "run")
