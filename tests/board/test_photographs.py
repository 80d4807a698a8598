"""The board photographs: what it says without pictures, weights or rows, and its tiers on made pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from oodbench.board.protocol import FEATURES, protocol_of, restricted, tiers
from oodbench.datasets import datasets, make
from oodbench.networks.weights import sha256
from oodbench.results.boards import PROTOCOL_FILE, TIERS_FILE, find_board
from oodbench.sweep.plan import make_plan
from tests.board.test_cli import one_sentence
from tests.helpers.results.boards import invoke

SUITES = ("PACS", "VLCS", "OfficeHome", "TerraIncognita")
NETWORKS = ("fine-tuned", "ResNet-50", "CLIP", "DINOv2")


def suite_folder(name: str, data_dir: Path) -> None:
    """The folder of a suite, with two pictures of a class, one pixel each of its own color."""
    suite: Any = datasets.get(name)
    number = 0
    for _, folder, _ in suite.places:
        for label in range(suite.num_classes):
            place = data_dir / suite.metadata.folder / folder / f"class {label:02}"
            place.mkdir(parents=True)
            for _ in range(2):
                color = (number % 256, number // 256, 0)
                Image.new("RGB", (1, 1), color).save(place / f"{number:05}.png")
                number += 1


def write_features(dataset: Any) -> None:
    """Features of FrozenFeatures that tell classes apart, in place of those of its network."""
    environments = dataset.images.load(0)
    folder = dataset._folder(environments)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    (width,) = dataset.input_shape
    means = rng.normal(size=(dataset.task.num_outputs, width)).astype(np.float32)
    for i, environment in enumerate(environments.values()):
        x = rng.standard_normal((len(environment.y), width), dtype=np.float32)
        x += 0.2 * means[environment.y.numpy()] + 0.1 * rng.normal(size=width).astype(np.float32)
        np.save(folder / f"{i}.npy", x)


def feature_sets(board: Path, data_dir: Path, *of: str) -> dict[str, Any]:
    """The datasets of features of these suites in a board, by label."""
    known = [entry for entry in protocol_of(board).datasets if entry.name == FEATURES]
    entries = [entry for entry in known if entry.options["of"] in of]
    return {entry.title: make(FEATURES, entry.options, data_dir) for entry in entries}


def small_board(folder: Path, **changes: Any) -> Path:
    """The board photographs for fewer pictures, and with changed keys."""
    board = folder / "small"
    board.mkdir()
    values = yaml.safe_load((find_board("photographs") / PROTOCOL_FILE).read_text())
    for entry in values["datasets"]:
        entry |= {"settings": ["subset=true"]} if entry["name"] == FEATURES else {"subset": True}
    (board / PROTOCOL_FILE).write_text(yaml.safe_dump(values | changes))
    (board / TIERS_FILE).write_text((find_board("photographs") / TIERS_FILE).read_text())
    return board


def test_without_rows_every_command_says_so_in_a_sentence(tmp_path: Path) -> None:
    board = small_board(tmp_path)
    said = "has a protocol of 16 datasets and no frozen rows yet: `python -m oodbench.board run"
    for command in ("show", "list"):
        text = invoke(command, *([board] * (command == "show")))
        assert said in " ".join(text.split())
    for command in ("table", "compare", "validate", "rerun"):
        assert said in one_sentence(command, board)


def test_what_is_missing_is_said_with_its_place(tmp_path: Path) -> None:
    board, data = small_board(tmp_path), tmp_path / "data"
    data.mkdir()
    own = {network: {"datasets": [f"PACS, {network}"]} for network in NETWORKS[2:]}
    (board / "tiers.yaml").write_text(yaml.safe_dump(own))
    for command in ("run", "cache"):
        text = one_sentence(command, board, "--data-dir", data, "--tier", "CLIP")
        assert f"there is no folder {data / 'PACS'}; get it from https://" in text
        assert f"data download PACS --from FOLDER --data-dir {data}" in text
    suite_folder("PACS", data)
    text = one_sentence("run", board, "--data-dir", data, "--tier", "DINOv2")
    assert f"data cache FrozenFeatures --data-dir {data}" in text
    assert "--set weights=dinov2_vitb14_pretrain.pth" in text
    text = one_sentence("cache", board, "--data-dir", data, "--tier", "DINOv2")
    assert "put it there, with SHA-256 0b8b82f8" in text
    assert f"there is no file of weights {data / 'dinov2_vitb14_pretrain.pth'}" in text


@pytest.mark.slow
def test_the_tier_of_features_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ["ERM", "VREx"]
    board = small_board(tmp_path, hparam_draws=1, trials=1, algorithms=rows)
    data = tmp_path / "data"
    suite_folder("PACS", data)
    for label, dataset in feature_sets(board, data, "PACS").items():
        if label in ("PACS, CLIP", "PACS, DINOv2"):
            write_features(dataset)
    command = ("run", "./small", "--tier", "features", "--data-dir", data)
    assert "16 runs in sweep 'photographs'" in invoke(*command, "--plan")
    assert "3,200 steps, 10 a second" in invoke(*command, "--plan", "--steps-per-second", 10)
    assert "is for --plan" in one_sentence(*command, "--steps-per-second", 10)
    assert not (tmp_path / "results").exists()
    text = " ".join(invoke(*command, "--workers", 1).split())
    assert "VLCS, DINOv2: `python -m oodbench.data download VLCS --from FOLDER" in text
    assert "left out: PACS, ResNet-50: `python -m oodbench.data cache Froz" in text
    assert "16 done of 16 runs in results/small-features" in text
    text = invoke("freeze", "results/small-features", "./small", "--data-dir", data)
    assert "New in ./small: 4 rows of datasets" in text
    text = " ".join(invoke("table", "./small", "--notes").split())
    assert "open_clip_model.safetensors (4b869929): style seen" in text
    assert "LVD-142M on PACS: seen; photographs alone: it holds ImageNet (arXiv:2304.07193)" in text


@pytest.mark.slow
def test_the_features_of_a_board_are_computed_from_a_file_of_weights(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = "vit_small_patch14_dinov2"
    network = timm.create_model(model, num_classes=0, img_size=518)
    torch.save(network.state_dict(), tmp_path / "dinov2.pth")
    given: dict[str, Any] = {
        **{"of": "PACS", "settings": ["subset=true"], "network": "timm", "weights": "dinov2.pth"},
        "network_settings": [f"model={model}", "size=28"],
        "sha256": sha256(tmp_path / "dinov2.pth"),
    }
    board = small_board(tmp_path, datasets=[{"name": FEATURES, "label": "small", **given}])
    suite_folder("PACS", tmp_path)
    invoke("cache", board, "--data-dir", tmp_path)
    assert make(FEATURES, given, tmp_path).load(0)["A"].x.shape[1] == 384


@pytest.mark.nightly
def test_the_features_of_four_datasets_are_planned(tmp_path: Path) -> None:
    for name in SUITES:
        suite_folder(name, tmp_path)
    board = small_board(tmp_path)
    for dataset in feature_sets(board, tmp_path, *SUITES).values():
        write_features(dataset)
    tier = tiers(board)["features"]
    sweep = restricted(protocol_of(board), ["all"], tier.trials, tier.draws, tier.datasets)
    plan = make_plan(sweep, tmp_path)
    assert len(plan.runs) == 12 * 4 * 27 and not plan.impossible
