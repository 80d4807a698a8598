from hypothesis import given
from hypothesis import strategies as st

from oodbench.seeds import derive

NAME = st.text(st.characters(codec="utf-8", exclude_characters="\x1f"), max_size=8)


def test_seeds_are_frozen() -> None:
    assert derive("data", "Spirals", 0) == 2052978268755692121
    assert derive() == 8203414616412130826


@given(st.lists(NAME, min_size=1, max_size=4), st.lists(NAME, min_size=1, max_size=4))
def test_equal_names_and_only_they_give_equal_seeds(one: list[str], two: list[str]) -> None:
    assert (derive(*one) == derive(*two)) == (one == two)
    assert 0 <= derive(*one) < 2**63
