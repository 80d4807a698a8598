import pytest

from oodbench.list.catalogue import beside, listing, markdown
from oodbench.list.sources import Entry, own_entries
from oodbench.registry import CHANGES
from tests.helpers.paths import ROOT


def test_the_committed_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "catalogue.md").read_text() == markdown(own_entries())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_listing_keeps_its_width_and_its_words(width: int) -> None:
    text = listing(own_entries(), width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for entry in own_entries():
        assert entry.name in words
        assert set(entry.summary.split()) <= set(words)


def test_a_long_name_has_a_line_of_its_own() -> None:
    assert beside("abcdefgh", "one two three", 30, indent=8) == [
        "  abcdefgh",
        "        one two three",
    ]
    assert beside("a", "one two three four five", 28, indent=8) == [
        "  a     one two three four",
        "        five",
    ]


def test_a_bar_in_a_sentence_does_not_end_a_cell() -> None:
    assert r"p(y \| x)" in markdown([Entry("dataset", "D", "Of p(y | x).", "none")])


def test_algorithms_stand_under_what_they_change() -> None:
    text = listing(own_entries(), 80)
    titles = [line for line in text.splitlines() if line.startswith("algorithms")]
    assert titles[0] == "algorithms, risk: how the environments' risks become one"
    assert [title.split(": ")[0].removeprefix("algorithms, ") for title in titles] == [*CHANGES]
    penalties = text.partition(titles[1])[2].partition("\n\n")[0]
    assert "  CORAL" in penalties and "  ERM" not in penalties
    assert "(transductive)" in text.partition("  MTL")[2].partition("  RI")[0]
