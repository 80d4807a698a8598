"""The attributes of examples, and the groups that they make with the targets."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from oodbench.data.preparation import group_names, load_checked
from oodbench.datasets import make
from oodbench.errors import UserError
from tests.datasets.digits.test_colored_mnist import color
from tests.datasets.files.test_image_suites import spawrious
from tests.helpers.data.pictures import draw, picture
from tests.helpers.data.wilds_copies import opened


def test_the_colour_is_the_attribute_without_colour_too() -> None:
    dataset = make("ColoredDigits", {})
    assert group_names(dataset)[:2] == ("5 to 9, colour 0", "5 to 9, colour 1")
    coloured, grey = dataset.load(0), make("ColoredDigits", {"grayscale": True}).load(0)
    for name, environment in coloured.items():
        for found in (environment.attributes, grey[name].attributes):
            assert found is not None and torch.equal(found, color(environment))


def test_the_background_of_spawrious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodbench.datasets.spawrious.TOTAL", 10)
    spawrious(tmp_path, 10)
    dataset: Any = make("Spawrious", {"variant": "O2O_hard", "size": 4}, tmp_path)
    found, listing = dataset.load(0), dataset.listing
    for name, files in listing.items():
        names = [dataset.attributes[i] for i in found[name].attributes.tolist()]
        assert names == [file.parents[1].name for file, _ in files]
    assert set(found["Test"].attributes.tolist()) != set(found["SC_group_1"].attributes.tolist())


def test_folders_in_those_of_the_classes(tmp_path: Path) -> None:
    for environment in ("north", "south"):
        draw(tmp_path / environment, ("cat", "dog"), ("indoors", "outdoors"), count=2)
    plain = make("ImageFolder", {}, tmp_path)
    assert not plain.attributes and all(e.attributes is None for e in plain.load(0).values())
    dataset = make("ImageFolder", {"attributes": True}, tmp_path)
    assert group_names(dataset) == (
        "cat, indoors",
        "cat, outdoors",
        "dog, indoors",
        "dog, outdoors",
    )
    for found in load_checked(dataset, 0).values():
        assert found.attributes is not None
        assert found.attributes.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    picture(0, 0).save(tmp_path / "north" / "dog" / "stray.png")
    with pytest.raises(UserError, match=r"stray.png is in no folder of an attribute"):
        make("ImageFolder", {"attributes": True}, tmp_path).load(0)


def test_a_column_of_a_table(tmp_path: Path) -> None:
    rows = [(i % 5, i % 2, "ab"[i // 2 % 2], "rain" if i % 3 else "sun") for i in range(24)]
    data = pd.DataFrame(rows, columns=["x", "target", "environment", "weather"])
    data.to_csv(tmp_path / "mine.csv", index=False)
    dataset = make("Table", {"file": "mine.csv", "attribute": "weather"}, tmp_path)
    assert (dataset.input_shape, dataset.attributes) == ((1,), ("rain", "sun"))
    for name, environment in load_checked(dataset, 0).items():
        wanted = (data["weather"][data["environment"] == name] == "sun").astype(int)
        assert environment.attributes is not None
        assert environment.attributes.tolist() == wanted.tolist()
    with pytest.raises(UserError, match="unknown column 'wether'"):
        make("Table", {"file": "mine.csv", "attribute": "wether"}, tmp_path)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("FMoW", ("Americas", "Europe", "Africa", "Asia", "Oceania")),
        ("PovertyMap", ("not urban", "urban")),
        ("CivilComments", ("not black", "black")),
        ("CelebA", ("not male", "male")),
        ("Waterbirds", ("land", "water")),
        ("Camelyon17", ()),
    ],
)
def test_the_field_of_wilds(name: str, attributes: tuple[str, ...], wilds_dir: Path) -> None:
    dataset = opened(name, wilds_dir)
    assert dataset.attributes == attributes
    for environment, found in load_checked(dataset, 0).items():
        if not attributes:
            assert found.attributes is None
            continue
        assert found.attributes is not None
        column = dataset.data.metadata_fields.index(dataset.row.attribute)
        wanted = dataset.data.metadata_array[dataset.places[environment], column]
        assert found.attributes.tolist() == wanted.tolist()
