"""SubpopBench's folders, made small in the layout that its scripts write."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from oodbench.datasets import make
from oodbench.errors import UserError
from oodbench.sweep.plan import single

IMAGES = {
    "SubpopWaterbirds": ("waterbirds", "metadata_waterbirds.csv", 2),
    "SubpopCelebA": ("celeba", "metadata_celeba.csv", 2),
    "SubpopCheXpert": ("chexpert", "subpop_bench_meta/metadata_no_finding.csv", 6),
}
TEXTS = {
    "SubpopCivilComments": ("civilcomments", "metadata_civilcomments_fine.csv", 2, 8),
    "SubpopMultiNLI": ("multinli", "metadata_multinli.csv", 3, 2),
}
FOLDERS = {
    "SubpopWaterbirds": "waterbird_complete95_forest2water2",
    "SubpopCelebA": "img_align_celeba",
}


def table(path: Path, filenames: list[str], classes: int, attributes: int) -> None:
    """A table with every group in every split, of which the last row is a test example."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame({"id": range(len(filenames)), "filename": filenames})
    frame["split"] = frame["id"] * 3 // len(filenames)
    group = frame["id"] % (classes * attributes)
    frame.assign(y=group // attributes, a=group % attributes).to_csv(path, index=False)


def make_images(root: Path, name: str) -> Path:
    """The folder of a set of images, 24 by 32 pixels, of a colour each."""
    folder, metadata, attributes = IMAGES[name]
    filenames = []
    for i in range(6 * attributes):
        place = f"train/patient{i}/view.jpg" if name == "SubpopCheXpert" else f"some/{i}.jpg"
        file = root / folder / FOLDERS.get(name, "") / place
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 24, 3), 5 * i, np.uint8)).save(file)
        filenames.append(f"/elsewhere/chexpert/{place}" if name == "SubpopCheXpert" else place)
    table(root / folder / metadata, filenames, 2, attributes)
    return root / folder


def make_texts(root: Path, name: str) -> Path:
    folder, metadata, classes, attributes = TEXTS[name]
    count = 6 * classes * attributes
    table(root / folder / metadata, [*map(str, range(count))], classes, attributes)
    if name == "SubpopCivilComments":
        texts = pd.DataFrame({"comment_text": [f"a,\nword number {i}" for i in range(count)]})
        texts.to_csv(root / folder / "civilcomments_fine.csv", index=False)
        return root / folder
    features: Any = importlib.import_module("oodbench.datasets.subpop_bench")
    for part, name_of_file in enumerate(features.FEATURES):  # a third of the examples each
        examples = []
        for i in range(part * count // 3, (part + 1) * count // 3):
            example = features.InputFeatures()
            example.input_ids, example.label_id = [101, i] + [0] * 126, 0
            examples.append(example)
        file = root / folder / name_of_file
        file.parent.mkdir(parents=True, exist_ok=True)
        stub = ModuleType("utils_glue")
        vars(stub)["InputFeatures"] = features.InputFeatures
        with pytest.MonkeyPatch.context() as patch:  # the module whose class SubpopBench pickles
            patch.setitem(sys.modules, "utils_glue", stub)
            torch.save(examples, file)
    return root / folder


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_those_of_the_table(name: str, tmp_path: Path) -> None:
    make_images(tmp_path, name)
    dataset: Any = make(name, {"size": 4}, tmp_path)
    environments = dataset.load(0)
    count = 2 * IMAGES[name][2]
    assert list(environments) == ["train", "validation", "test"]
    for part, environment in enumerate(environments.values()):
        assert environment.y.tolist() == [float(i // (count // 2)) for i in range(count)]
        assert environment.attributes.tolist() == [i % (count // 2) for i in range(count)]
        x = environment.x.read(torch.tensor([0, count - 1]))
        assert x.shape == (2, 3, 4, 4) and x.dtype == torch.uint8
        shades = [5 * (part * count), 5 * (part * count + count - 1)]
        assert (x.float().mean((1, 2, 3)) - torch.tensor(shades).float()).abs().max() < 3  # a JPEG
    dataset.check()
    assert len(dataset.files_read) == 1 + 3 * count


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_those_of_the_table(name: str, tmp_path: Path) -> None:
    make_texts(tmp_path, name)
    dataset: Any = make(name, {"size": 5, "from_scratch": True}, tmp_path)
    environments = dataset.load(0)
    _, _, classes, attributes = TEXTS[name]
    count = 2 * classes * attributes
    for part, environment in enumerate(environments.values()):
        assert len(environment.y) == len(environment.x) == count
        x = environment.x.read(torch.arange(count))
        assert x.shape == (count, 5) and len(x.unique(dim=0)) == count  # each has its own number
        if name == "SubpopMultiNLI":
            assert x[:, 1].tolist() == [part * count + i for i in range(count)]
    assert dataset.task.kind == ("binary" if classes == 2 else "multiclass")
    dataset.check()


def test_the_whole_split_is_trained_on(tmp_path: Path) -> None:
    make_images(tmp_path, "SubpopWaterbirds")
    entry = {"name": "SubpopWaterbirds", "size": 8}
    run = single(entry, {"name": "ERM"}, tmp_path, steps=4, network="ConvNet")
    assert run.holdout == 0 and run.validation_environments == ("validation",)


def test_what_is_missing_or_foreign_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SubpopCelebA needs --data-dir DIR with SubpopBench's"):
        make("SubpopCelebA", {}).check()
    with pytest.raises(UserError, match=r"there is no folder .*celeba; the scripts of https"):
        make("SubpopCelebA", {}, tmp_path).check()
    (tmp_path / "celeba").mkdir()
    with pytest.raises(UserError, match=r"metadata_celeba.csv is missing"):
        make("SubpopCelebA", {}, tmp_path).check()
    folder = make_texts(tmp_path, "SubpopMultiNLI")
    features: Any = importlib.import_module("oodbench.datasets.subpop_bench")
    torch.save([Path("another object")], folder / features.FEATURES[0])
    with pytest.raises(UserError, match="holds no word pieces"):
        make("SubpopMultiNLI", {}, tmp_path).check()
