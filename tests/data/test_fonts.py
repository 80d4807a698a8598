"""Characters of fonts as drawings."""

import pytest

from oodbench.data.drawn import outlines, rendered
from tests.helpers.data.pictures import font


def test_a_character_is_as_large_as_fits_and_in_the_middle() -> None:
    drawings = outlines(font("AB"), "AB", "it")
    assert drawings is not None
    for width, svg in zip((120, 140), drawings.values(), strict=True):
        ink = rendered(svg, 64, "it")[0] < 128
        columns, rows = ink.any(0).nonzero()[0], ink.any(1).nonzero()[0]
        assert len(rows) == pytest.approx(64 / 1.1, abs=1)
        assert len(columns) == pytest.approx(64 / 1.1 * width / 900, abs=1)
        assert rows.mean() == pytest.approx(31.5, abs=0.6)
        assert columns.mean() == pytest.approx(31.5, abs=0.6)


def test_a_slanted_bar_leans_to_the_right() -> None:
    drawings = outlines(font("A", slant=300), "A", "it")
    assert drawings is not None
    ink = rendered(drawings["A"], 32, "it")[0] < 128
    assert ink[5].nonzero()[0].mean() > ink[26].nonzero()[0].mean() + 3


def test_a_font_that_lacks_a_character_has_none() -> None:
    assert outlines(font("AB"), "ABC", "it") is None
    assert outlines(font("ABC", blank="C"), "ABC", "it") is None
    assert outlines(font("ABC"), "ABC", "it") is not None
