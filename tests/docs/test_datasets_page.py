"""docs/datasets.md names every registered dataset, with the figures and pictures beside it."""

from oodbench.datasets import datasets
from tests.docs.datasets_page import measured, page, pictures
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs"
PAGE = DOCS / "datasets.md"


def test_the_page_has_the_figures_and_pictures_beside_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rooms = {name: room for name, room in measured(DOCS).items() if name in datasets}
    table = text.partition("<!-- measured -->")[2].partition("<!-- end of measured -->")[0]
    made = page(text, rooms, pictures(DOCS))
    assert table in made
    assert made.partition("<!-- pictures -->")[2] == text.partition("<!-- pictures -->")[2]
