"""Pictures in Parquet shards, as Hugging Face's hub lays them, become the folders that datasets read."""

import io
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from oodbench.data import copies
from oodbench.data.copies import fetch
from oodbench.data.pictures.published import Place
from oodbench.datasets import datasets, make, require_files
from oodbench.errors import UserError

DOMAINS = {
    "PACS": ("art_painting", "cartoon", "photo", "sketch"),
    "OfficeHome": ("art", "Clipart", "product", "Real_World"),
    "VLCS": ("CALTECH", "LabelMe", "SUN", "PASCAL"),
    "TerraIncognita": (100, 38, "location_43", "L46"),
    "DomainNet": ("clipart", "info", "painting", "quickdraw", "real", "sketch"),
}
"""What copies call the environments."""


def picture(i: int, path: str | None) -> dict[str, object]:
    pixels = np.full((9, 12, 3), 7 * i % 256, np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG" if i % 2 else "PNG")
    return {"bytes": file.getvalue(), "path": path}


def shard(file: Path, rows: Sequence[dict[str, Any]], names: Mapping[str, Sequence[str]]) -> None:
    """A file as `push_to_hub` writes it, with the names of classes in its metadata."""
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows))
    known = {column: {"names": [*each], "_type": "ClassLabel"} for column, each in names.items()}
    features = {name: {"_type": "Value"} for name in table.column_names} | known
    about = json.dumps({"info": {"features": features}})
    pq.write_table(table.replace_schema_metadata({"huggingface": about}), file)


def shards(
    folder: Path, rows: Sequence[dict[str, Any]], names: Mapping[str, Sequence[str]]
) -> None:
    for k in range(3):
        shard(folder / "data" / f"train-{k:05}-of-00003.parquet", rows[k::3], names)


def rows_of(name: str, paths: bool = True) -> tuple[list[dict[str, Any]], list[str]]:
    """One picture of each class in each environment, and two of the first; and the names of classes."""
    cls: Any = datasets.get(name)
    classes = [f"class {cls.num_classes - i:03}" for i in range(cls.num_classes)]
    pairs = itertools.product([str(each) for each in DOMAINS[name]], [*range(len(classes)), 0])
    rows: list[dict[str, Any]] = []
    for domain, label in pairs:
        path = f"somewhere/{len(rows):04}.jpg" if paths else None
        rows.append({"image": picture(label, path), "domain": domain, "label": label})
    return rows, classes


def download(name: str, folder: Path, **options: object) -> str:
    """The refusal of a copy in the folder `hub`, empty if it is laid out in the folder `there`."""
    dataset = require_files(make(name, options, folder / "there"))
    try:
        fetch(dataset, str(folder / "hub"), folder / "there")
        said = ""
    except UserError as error:
        said = str(error)
        assert "\n" not in said and not [*folder.glob("there/*")]
    assert not [*folder.glob("there/.*")]
    return said


@pytest.mark.parametrize("name", [n for n in DOMAINS if n != "DomainNet"])
def test_shards_become_class_folders(name: str, tmp_path: Path) -> None:
    rows, classes = rows_of(name, paths=name != "VLCS")
    shards(tmp_path / "hub", rows, {"label": classes})
    assert download(name, tmp_path, subset=True) == ""
    dataset: Any = make(name, {"subset": True, "size": 8}, tmp_path / "there")
    dataset.check()
    assert dataset.classes == tuple(sorted(classes))
    count = len(classes)
    for environment in dataset.load(0).values():
        assert environment.y.tolist() == [*range(count), count - 1]
        means = environment.x.read(torch.arange(count)).float().mean((1, 2, 3))
        wanted = torch.tensor([7.0 * (count - 1 - i) % 256 for i in range(count)])
        torch.testing.assert_close(means, wanted, atol=1.5, rtol=0)


FORMS = ("{}/train-0000{}.parquet", "data/{}-0000{}-of-00002.parquet", "default/{}/{}.parquet")


@pytest.mark.parametrize("form", FORMS)
def test_other_names_of_columns_and_environments_in_paths(form: str, tmp_path: Path) -> None:
    rows, classes = rows_of("PACS")
    for domain, part in itertools.product(DOMAINS["PACS"], (0, 1)):
        chosen = [r for r in rows if (r["domain"], r["label"] % 2) == (domain, part)]
        renamed = [{"img": r["image"], "class_name": classes[r["label"]]} for r in chosen]
        shard(tmp_path / "hub" / form.format(domain, part), renamed, {})
    assert download("PACS", tmp_path, subset=True) == ""
    make("PACS", {"subset": True}, tmp_path / "there").check()
    assert len([*(tmp_path / "there" / "PACS").rglob("*.jpg")]) == 4 * 8


def test_published_numbers_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, classes = rows_of("PACS")
    shards(tmp_path / "hub", rows, {"label": classes})
    cls: Any = datasets.get("PACS")
    said = download("PACS", tmp_path)
    assert "hub, art_painting, holds 8 images" in said and "not the published 2048" in said
    assert "`subset`" in said and not [*tmp_path.glob("there/*")]
    places = tuple(place._replace(images=8) for place in cls.places)
    monkeypatch.setattr(cls, "places", places)
    monkeypatch.setattr(cls, "total", 33)
    assert "holds 32 images" in download("PACS", tmp_path)
    monkeypatch.setattr(cls, "total", 32)
    monkeypatch.setattr(cls, "places", (Place("A", "art_painting", (1,) * 6 + (2,)), *places[1:]))
    assert download("PACS", tmp_path) == ""
    make("PACS", {}, tmp_path / "there").check()


def refused(rows: list[dict[str, Any]], names: Mapping[str, Sequence[str]], folder: Path) -> str:
    shards(folder / "hub", rows, names)
    return download("PACS", folder, subset=True)


def test_what_is_no_copy_of_the_dataset_is_refused(tmp_path: Path) -> None:
    rows, classes = rows_of("PACS")
    names, two = {"label": classes}, ("image", "label")
    oil = rows[0] | {"domain": "oil"}
    cases: dict[str, tuple[list[dict[str, Any]], Mapping[str, Sequence[str]]]] = {
        "0 is not the name of a class, and the file's metadata have none": (rows, {}),
        "'../out' is not the name of a class": (rows, {"label": ["../out", *classes[1:]]}),
        "'oil' is not one of art_painting, cartoon, photo, sketch": ([oil, *rows], names),
        "'0' is not one of art_painting": ([r | {"domain": 0} for r in rows], names),
        "holds 6 classes, not 7": ([r for r in rows if r["label"]], names),
        "has no column 'image'": ([{"domain": r["domain"], "label": r["label"]} for r in rows], names),
        "has no column 'label'": ([{"image": r["image"], "domain": r["domain"]} for r in rows], names),
        "a row without bytes": ([r | {"image": {"bytes": None, "path": "a.jpg"}} for r in rows], names),
        "-1 is not the name of a class": ([*rows, rows[0] | {"label": -1}], names),
        "'train-00000-of-00003.parquet/data'": ([{k: r[k] for k in two} for r in rows], names),
    }  # fmt: skip
    for said, (case, known) in cases.items():
        assert said in refused(case, known, tmp_path), said
    shards(tmp_path / "hub", rows, names)
    file = tmp_path / "hub" / "data" / "train-00001-of-00003.parquet"
    file.write_bytes(file.read_bytes()[:-50])
    assert f"{file} is cut off" in download("PACS", tmp_path, subset=True)
    file.write_text("version https://git-lfs.github.com/spec/v1")
    assert f"{file} is a pointer of Git LFS" in download("PACS", tmp_path, subset=True)
    file.unlink()
    assert "train-00001-of-00003.parquet is missing" in download("PACS", tmp_path, subset=True)


def test_names_of_pictures_lead_nowhere_and_repeat_without_loss(tmp_path: Path) -> None:
    rows, classes = rows_of("PACS")
    names = ["../../../a.jpg", "same.png", ".hidden.jpg", "C:\\x\\b.jpg", "no"]
    for row, name in zip(rows, itertools.cycle(names), strict=False):
        row["image"]["path"] = name
    shards(tmp_path / "hub", rows, {"label": classes})
    assert download("PACS", tmp_path, subset=True) == ""
    files = [path for path in (tmp_path / "there" / "PACS").rglob("*") if path.is_file()]
    assert len(files) == len(rows) == len([path for path in files if path.name[0] != "."])
    assert {path.name for path in tmp_path.iterdir()} == {"hub", "there"}
    make("PACS", {"subset": True}, tmp_path / "there").check()


GROUPS = [(0, 0), (0, 1), (1, 0), (1, 1)]
COLUMNS: dict[str, tuple[str, str, Mapping[str, Sequence[str]]]] = {
    "birds": ("label", "place", {"label": ("waterbird", "landbird"), "place": ("land", "water")}),
    "birds of numbers": ("y", "background", {}),
    "faces": ("Blond_Hair", "Male", {}),
}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        *itertools.product(("Waterbirds", "SubpopWaterbirds"), ("birds", "birds of numbers")),
        *itertools.product(("CelebA", "SubpopCelebA"), ("faces",)),
    ],
)
def test_sets_with_groups(
    name: str, columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not name.startswith("Subpop"):
        pytest.importorskip("wilds")
    y, a, names = COLUMNS[columns]
    values: Any = {"faces": (-1, 1), "birds": (1, 0)}.get(columns, (0, 1))  # names are reversed
    if name == "SubpopCelebA":
        values = (False, True)
    for split in ("train", "validation", "test"):
        rows = [
            {"image": picture(i, f"{9 - i:06}.jpg" if split == "train" else None)}
            | {y: values[of_y], a: values[of_a] if columns == "faces" else of_a}
            for i, (of_y, of_a) in enumerate(GROUPS * 2)
        ]
        for k in range(2):
            shard(tmp_path / "hub" / f"data/{split}-{k:05}-of-00002.parquet", rows[k::2], names)
    assert "holds 8 images in train, not the published" in download(name, tmp_path)
    layout = copies.LAYOUTS[name]
    monkeypatch.setitem(copies.LAYOUTS, name, replace(layout, published=(8, 8, 8)))
    assert download(name, tmp_path) == ""
    dataset: Any = make(name, {"size": 9, "from_scratch": True}, tmp_path / "there")
    dataset.check()
    found = Counter[tuple[int, int]]()
    for environment in dataset.load(0).values():
        found.update(zip(environment.y.tolist(), environment.attributes.tolist(), strict=True))
    assert found == dict.fromkeys(GROUPS, 6)
