"""The published datasets of image files, each in the layout it comes in, with few small files."""

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from oodbench.data.pictures.published import Suite
from oodbench.datasets import make
from oodbench.results.domainbed import ENVIRONMENTS
from tests.helpers.data.pictures import draw

FOLDERS = {
    "PACS": ["art_painting", "cartoon", "photo", "sketch"],
    "VLCS": ["Caltech101", "LabelMe", "SUN09", "VOC2007"],
    "OfficeHome": ["Art", "Clipart", "Product", "Real World"],
    "TerraIncognita": [f"location_{place}" for place in (100, 38, 43, 46)],
    "DomainNet": ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"],
    "SVIRO": "aclass escape hilux i3 lexus tesla tiguan tucson x5 zoe".split(),
}
TOTALS = {"PACS": 9991, "VLCS": 10729, "OfficeHome": 15588, "DomainNet": 586575}
"""Table 2 of arXiv:2007.01434."""


@pytest.mark.parametrize("name", FOLDERS)
def test_what_was_published(name: str) -> None:
    dataset: Any = make(name, {})
    assert isinstance(dataset, Suite) and dataset.environments == ENVIRONMENTS[name]
    published = [place.images for place in dataset.places]
    if name in TOTALS:
        counts: list[Any] = [sum(n) if isinstance(n, tuple) else n for n in published]
        assert sum(counts) == TOTALS[name]
    else:
        assert published == [None] * len(published)
    assert [place.folder for place in dataset.places] == FOLDERS[name]


def places(half: int, pairs: str, count: int) -> dict[str, int]:
    """Counts by folder: `pairs` are a background and a breed each."""
    return dict.fromkeys((f"{half}/{pair}" for pair in pairs.split()), count)


def test_spawrious_is_that_of_its_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("oodbench.datasets.spawrious")
    monkeypatch.setattr(module, "TOTAL", 10)
    for half in ("0", "1"):
        root = tmp_path / "spawrious224" / half
        draw(root, module.BACKGROUNDS, module.BREEDS, 10, (".png",), (4, 4))

    def counted(variant: str) -> dict[str, Counter[str]]:
        dataset: Any = make("Spawrious", {"variant": variant, "size": 4}, tmp_path)
        found, examples = {}, dataset.load(0)
        for name, files in dataset.listing.items():
            backgrounds = [dataset.attributes[i] for i in examples[name].attributes]
            assert backgrounds == [file.parents[1].name for file, _ in files]
            assert len({file for file, _ in files}) == len(files)
            keys = [file.relative_to(dataset.root).parts[:3] for file, _ in files]
            assert all(module.BREEDS[y] == k[2] for (_, y), k in zip(files, keys, strict=True))
            found[name] = Counter("/".join(key) for key in keys)
        return found

    easy, hard = counted("O2O_easy"), counted("M2M_hard")
    common = "desert/bulldog jungle/dachshund dirt/labrador snow/corgi"
    beach = " ".join(f"beach/{breed}" for breed in module.BREEDS)
    tested = "dirt/bulldog snow/dachshund desert/labrador jungle/corgi"
    assert easy["SC_group_1"] == places(0, common, 9) | places(0, beach, 1)
    assert easy["SC_group_2"] == places(1, common, 8) | places(1, beach, 2)
    assert easy["Test"] == places(0, tested, 10) | places(1, tested, 10)
    first = "dirt/bulldog jungle/dachshund snow/labrador beach/corgi"
    second = "jungle/bulldog dirt/dachshund beach/labrador snow/corgi"
    tested = "snow/bulldog beach/dachshund dirt/labrador jungle/corgi "
    tested += "beach/bulldog snow/dachshund jungle/labrador dirt/corgi"
    assert hard["SC_group_1"] == places(0, first, 10)
    assert hard["SC_group_2"] == places(0, second, 10)
    assert hard["Test"] == places(0, tested, 10)
