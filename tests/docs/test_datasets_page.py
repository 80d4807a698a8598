from tests.docs import datasets_page
from tests.helpers.paths import ROOT


def test_the_page_of_datasets_has_the_figures_and_pictures_beside_it() -> None:
    text = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    made = datasets_page.page(text, datasets_page.measured(), datasets_page.pictures())
    table = text.partition("<!-- measured -->")[2].partition("<!-- end of measured -->")[0]
    assert table in made
    assert made.partition("<!-- pictures -->")[2] == text.partition("<!-- pictures -->")[2]
