"""PACS, VLCS, OfficeHome and TerraIncognita, a few bytes a picture, features of them, and a board."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from oodbench.board.protocol import FEATURES, protocol_of
from oodbench.datasets import datasets, make
from oodbench.results.boards import PROTOCOL_FILE, TIERS_FILE, find_board

SUITES = ("PACS", "VLCS", "OfficeHome", "TerraIncognita")


def picture(number: int) -> bytes:
    """A PNG of one pixel whose color is the number."""
    file = io.BytesIO()
    color = (number % 256, number // 256 % 256, number // 65536)
    Image.new("RGB", (1, 1), color).save(file, "PNG")
    return file.getvalue()


def numbers_of(name: str, share: float = 1.0) -> dict[str, list[int]]:
    """The number of pictures of each class by folder of an environment, a share of the published ones."""
    suite: Any = datasets.get(name)
    found = {}
    for _, folder, images in suite.places:
        if not isinstance(images, tuple):
            whole = images or suite.total // len(suite.places)
            each = [whole // suite.num_classes] * suite.num_classes
            images = (*each[1:], whole - sum(each[1:]))
        found[folder] = [max(2, int(share * count)) if share < 1 else count for count in images]
    return found


def suite_folder(name: str, data_dir: Path, share: float = 1.0) -> None:
    """The folder of a dataset under `data_dir`, with the numbers of `numbers_of`."""
    suite: Any = datasets.get(name)
    number = 0
    for folder, counts in numbers_of(name, share).items():
        for label, count in enumerate(counts):
            place = data_dir / suite.metadata.folder / folder / f"class {label:02}"
            place.mkdir(parents=True)
            for _ in range(count):
                (place / f"{number:05}.png").write_bytes(picture(number))
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
    known: Any = protocol_of(board).datasets
    entries = [e for e in known if e["name"] == FEATURES and e["of"] in of]
    keys = ("name", "label", "training")
    options = {e["label"]: {k: v for k, v in e.items() if k not in keys} for e in entries}
    return {label: make(FEATURES, given, data_dir) for label, given in options.items()}


def small_board(folder: Path, digests: Mapping[str, str] | None = None, **changes: Any) -> Path:
    """The board photographs for fewer pictures, weights with these digests by file, and changed keys."""
    board = folder / "small"
    board.mkdir()
    values = yaml.safe_load((find_board("photographs") / PROTOCOL_FILE).read_text())
    for entry in values["datasets"]:
        entry |= {"settings": ["subset=true"]} if entry["name"] == FEATURES else {"subset": True}
        if digests is not None and "weights" in entry:
            entry["sha256"] = digests[entry["weights"]]
    (board / PROTOCOL_FILE).write_text(yaml.safe_dump(values | changes))
    (board / TIERS_FILE).write_text((find_board("photographs") / TIERS_FILE).read_text())
    return board
