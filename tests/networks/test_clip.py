"""CLIP's two sides against the package transformers, with random weights of a small size."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oodbench.identity import sha256
from oodbench.networks.base import build
from oodbench.networks.clip import PIXELS
from oodbench.sweep.plan import single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.commands import type_in
from tests.helpers.data.transformers_copies import small_clip
from tests.helpers.results.sweeps import tiny, trained

pytestmark = pytest.mark.slow

CLASSES = ("cat", "dog", "ant")
IMAGES = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_clip(tmp_path_factory.mktemp("clip"))


def made(
    folder: Path, outputs: int = 3, shape: tuple[int, ...] = (3, 16, 16), **values: Any
) -> Any:
    known = {"weights": str(folder), "classes": CLASSES, "normalized": False, **values}
    return build("CLIP", known, shape, outputs, seed=0)


def logits_of_transformers(folder: Path, prompts: list[str]) -> torch.Tensor:
    """The logits (N, C) that the package's whole model has for IMAGES."""
    from transformers import CLIPModel, CLIPTokenizer

    mean, std = (torch.tensor(PIXELS[k])[:, None, None] for k in ("mean", "std"))
    tokens = CLIPTokenizer.from_pretrained(folder)(prompts, padding=True, return_tensors="pt")
    model: Any = CLIPModel.from_pretrained(folder)
    model.train(False)
    with torch.no_grad():
        logits: torch.Tensor = model(pixel_values=(IMAGES - mean) / std, **tokens).logits_per_image
    return logits


def test_a_head_of_texts_has_the_logits_of_the_whole_model(folder: Path) -> None:
    wanted = logits_of_transformers(folder, [f"a photo of a {name}." for name in CLASSES])
    torch.testing.assert_close(made(folder, head_init="text").eval()(IMAGES), wanted)
    other = logits_of_transformers(folder, [f"a {name}" for name in CLASSES])
    network = made(folder, head_init="text", template="a {}")
    torch.testing.assert_close(network.eval()(IMAGES), other)
    assert not torch.allclose(wanted, other)


def test_two_classes_have_the_difference_of_their_logits(folder: Path) -> None:
    wanted = logits_of_transformers(folder, ["a photo of a cat.", "a photo of a dog."])
    network = made(folder, 1, classes=CLASSES[:2], head_init="text")
    torch.testing.assert_close(network.eval()(IMAGES), wanted[:, 1:] - wanted[:, :1])


def test_grey_images_are_those_with_three_equal_channels(folder: Path) -> None:
    grey, colour = made(folder, shape=(1, 16, 16)).eval(), made(folder).eval()
    state = {k.replace("featurizer.2", "featurizer.1"): v for k, v in grey.state_dict().items()}
    colour.load_state_dict(state)
    one = IMAGES[:, :1]
    torch.testing.assert_close(grey(one), colour(one.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("tuning", "trained"), [("head", set()), ("bias", {"bias"}), ("lora", {"lora_A", "lora_B"})]
)
def test_what_is_trained_beside_the_head(folder: Path, tuning: str, trained: set[str]) -> None:
    network = made(folder, tuning=tuning)
    names = [n for n, p in network.featurizer.named_parameters() if p.requires_grad]
    words = {part for name in names for part in name.split(".") if part in trained}
    assert words == trained and all(trained & set(name.split(".")) for name in names)
    assert all(p.requires_grad for p in network.classifier.parameters())


def test_a_low_rank_change_begins_at_none_and_is_the_product_of_its_factors(folder: Path) -> None:
    network, plain = made(folder, tuning="lora", rank=2).eval(), made(folder).eval()
    torch.testing.assert_close(network.featurizer(IMAGES), plain.featurizer(IMAGES))
    changed: Any = network.featurizer[1].tower.encoder.layers[0].self_attn.q_proj
    below: nn.Linear = changed.lora_A["default"]
    above: nn.Linear = changed.lora_B["default"]
    nn.init.normal_(above.weight)
    assert below.weight.shape == (2, 16)
    layer = plain.featurizer[1].tower.encoder.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.weight += above.weight @ below.weight
    torch.testing.assert_close(network.featurizer(IMAGES), plain.featurizer(IMAGES))


def test_a_run_without_training_has_the_values_of_its_texts(folder: Path) -> None:
    values = {"weights": str(folder), "head_init": "text", "classes": [list("abcdefghij")]}
    network = {"name": "CLIP", "hparams": values}
    spec = single({"name": "RotatedDigits"}, {"name": "ZeroShot"}, steps=2, network=network)
    assert spec.network_hparams["sha256"] == sha256(folder / "model.safetensors")
    run = Run(spec, TrainSettings())
    before = {k: v.clone() for k, v in run.algorithm.state_dict().items()}
    for step in range(2):
        run.algorithm.train_step(run.batches_at(step)[step], step)
    assert all(torch.equal(v, before[k]) for k, v in run.algorithm.state_dict().items())


def test_a_sweep_shows_what_its_networks_were_pretrained_on(folder: Path, tmp_path: Path) -> None:
    hparams: dict[str, Any] = {"weights": str(folder), "head_init": "text", "tuning": "lora"}
    hparams["classes"] = [list("abcdefghij")]
    keys = {"steps": 2, "network": {"name": "CLIP", "hparams": hparams}, "trials": 1}
    sweep = tiny(datasets=["RotatedDigits"], algorithms=["ZeroShot", "ERM"], **keys)
    results = trained(tmp_path, sweep)
    text = type_in("report", "table", results.path).output
    rows = [line.split() for line in text.splitlines() if line.startswith(("ZeroShot", "ERM"))]
    checksum = f"({sha256(folder / 'model.safetensors')[:8]})"
    assert len(rows) == 2 and all(checksum in row and folder.name in row for row in rows)
