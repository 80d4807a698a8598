import re
import shutil
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn

from oodbench.errors import UserError
from oodbench.networks.base import build

pytestmark = pytest.mark.slow


def resnet_file(path: Path, seed: int = 7) -> Path:
    """Weights of ResNet-18, with running statistics that differ from the initial ones."""
    torch.manual_seed(seed)
    model = torchvision.models.resnet18(weights=None)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.uniform_(-0.5, 0.5)
    torch.save(model.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resnet_file(tmp_path_factory.mktemp("weights") / "r18.pth")


def theirs(path: Path, x: Tensor) -> Tensor:
    """What torchvision's own model with these weights has for features."""
    model = torchvision.models.resnet18(weights=None)
    model.load_state_dict(torch.load(path, weights_only=True))
    model.fc = nn.Identity()
    with torch.no_grad():
        return model.eval()(x)  # type: ignore[no-any-return]


def test_densenet_reads_new_and_old_files(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = torchvision.models.densenet121(weights=None).eval()
    state = model.state_dict()
    torch.save(state, tmp_path / "new.pth")
    old = {re.sub(r"(layer\d+\.(?:norm|conv))([12])", r"\1.\2", k): v for k, v in state.items()}
    assert old.keys() != state.keys()
    torch.save(old, tmp_path / "old.pth")
    model.classifier = nn.Identity()
    x = torch.randn(2, 3, 32, 32)
    for name in ("new", "old"):
        values = {"weights": str(tmp_path / f"{name}.pth")}
        network = build("DenseNet121", values, (3, 32, 32), 2, 0).eval()
        with torch.no_grad():
            torch.testing.assert_close(network.featurizer(x), model(x))
    assert build("DenseNet121", {}, (8, 32, 32), 2, 0)(torch.zeros(2, 8, 32, 32)).shape == (2, 2)
    with pytest.raises(UserError, match="images of at least 32 x 32 pixels"):
        build("DenseNet121", {}, (3, 24, 24), 2, 0)


def moments(network: nn.Module) -> list[Tensor]:
    return [b.clone() for n, b in network.named_buffers() if "running" in n]


def test_weights_from_a_file_give_torchvisions_features(file: Path, tmp_path: Path) -> None:
    shape = (3, 64, 64)
    network = build("ResNet18", {"weights": str(file)}, shape, 5, seed=0).eval()
    x = torch.randn(2, *shape)
    with torch.no_grad():
        torch.testing.assert_close(network.featurizer(x), theirs(file, x))
        assert network(x).shape == (2, 5) and network.num_features == 512
    wrapped = tmp_path / "wrapped.pth"  # as training scripts write it
    torch.save({"epoch": 3, "state_dict": torch.load(file, weights_only=True)}, wrapped)
    again = build("ResNet18", {"weights": str(wrapped)}, shape, 5, seed=0)
    assert all(map(torch.equal, again.parameters(), network.parameters()))
    other = build("ResNet18", {"weights": str(file)}, shape, 5, seed=1)
    for (name, a), (_, b) in zip(network.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b) == name.startswith("featurizer"), name


def test_other_channels_take_the_weights_in_turn(file: Path) -> None:
    network = build("ResNet18", {"weights": str(file)}, (5, 32, 32), 2, 0).eval()
    x = torch.randn(2, 5, 32, 32)
    summed = x[:, :3].clone()
    summed[:, :2] += x[:, 3:]
    with torch.no_grad():
        torch.testing.assert_close(network.featurizer(x), theirs(file, summed))


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_statistics_stay_and_their_scales_learn(file: Path, frozen: bool) -> None:
    values = {"weights": str(file), "freeze_batch_norm": frozen}
    network = build("ResNet18", values, (3, 32, 32), 2, 0)
    network.eval()
    network.train()
    before = moments(network)
    network(torch.randn(4, 3, 32, 32)).sum().backward()
    same = [torch.equal(a, b) for a, b in zip(before, moments(network), strict=True)]
    assert all(same) if frozen else not any(same)
    scales = [m.weight for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(scales) == 20 and all(w.grad is not None for w in scales)


def test_imagenets_weights_are_taken_from_torchs_cache_where_they_are_whole(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    cached = tmp_path / "checkpoints" / "resnet18-f37072fd.pth"
    cached.parent.mkdir()
    for said in (f"put https://.*{cached.name} into", r"f37072fd.pth is damaged \(its SHA-256"):
        with pytest.raises(UserError, match=said):
            build("ResNet18", {"weights": "imagenet"}, (3, 32, 32), 2, 0)
        shutil.copy(file, cached)


def test_weights_as_domainbed_stores_them_are_read_and_said(file: Path, tmp_path: Path) -> None:
    plain = build("ResNet18", {"weights": str(file)}, (3, 32, 32), 5, seed=0)
    weights = torch.load(file, weights_only=True)
    body = {f"network.{k}": v for k, v in weights.items() if not k.startswith("fc.")}
    twice = {f"{part}.{k}": v for part in ("featurizer", "network.0") for k, v in body.items()}
    stored = {"args": {}, "model_dict": twice | {"classifier.weight": weights["fc.bias"]}}
    torch.save(stored, tmp_path / "other.pth")
    with pytest.warns(UserWarning, match=r"the prefix `network\.0\.network\.` is removed"):
        other = build("ResNet18", {"weights": str(tmp_path / "other.pth")}, (3, 32, 32), 5, seed=0)
    assert all(map(torch.equal, plain.state_dict().values(), other.state_dict().values()))


def sizes_of(network: nn.Module, *layers: type[nn.Module]) -> list[tuple[int, ...]]:
    """The sizes of what such layers give, in a list that the passes to come fill."""
    sizes: list[tuple[int, ...]] = []
    for module in network.modules():
        if isinstance(module, layers):
            module.register_forward_hook(lambda m, i, o: sizes.append(tuple(o.shape[1:])))
    return sizes


def test_domainbeds_network_for_digits() -> None:
    network = build("MNISTCNN", {}, (2, 28, 28), 2, 0)
    sizes = sizes_of(network, nn.Conv2d, nn.GroupNorm)
    x = torch.randn(3, 2, 28, 28)
    features = network.featurizer(x)
    halves = [(128, 14, 14)] * 6
    assert sizes == [(64, 28, 28), (64, 28, 28), *halves]
    assert features.shape == (3, 128) and network.num_features == 128
    weights = [tuple(p.shape) for p in network.parameters() if p.dim() > 1]
    assert weights == [(64, 2, 3, 3), (128, 64, 3, 3), *[(128, 128, 3, 3)] * 2, (2, 128)]
    # by hand: normalisation comes after ReLU, so a channel group has mean 0 before the pooling
    first, norm = (network.get_submodule(f"featurizer.{i}") for i in (0, 2))
    hidden = norm(first(x).relu()).unflatten(1, (8, 8))
    torch.testing.assert_close(hidden.mean((2, 3, 4)), torch.zeros(3, 8), atol=1e-5, rtol=0)


def test_the_residual_network_is_the_released_one() -> None:
    network = build("FastResNet", {}, (3, 32, 32), 10, 0)
    assert sum(p.numel() for p in network.parameters()) == 6_573_120
    sizes = sizes_of(network, nn.Conv2d)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        features = network.eval().featurizer(x)
        logits = network(x)
    assert sizes[: len(sizes) // 2] == [
        *((64, 32, 32), (128, 32, 32), (128, 16, 16), (128, 16, 16)),
        *((256, 16, 16), (512, 8, 8), (512, 4, 4), (512, 4, 4)),
    ]
    weight = network.get_parameter("classifier.0.weight")
    torch.testing.assert_close(logits, 0.125 * features @ weight.T)


def test_a_residual_block_adds_its_input() -> None:
    network = build("FastResNet", {"width": 1}, (1, 8, 8), 2, 0)
    x = torch.randn(3, 2, 4, 4)
    block = network.get_submodule("featurizer.3").eval()
    torch.testing.assert_close(block(x), x + block.get_submodule("f")(x))
