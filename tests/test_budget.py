"""Every room keeps its budget: see docs/CONTRIBUTING.md."""

import pytest

from tests.budget import FILE, exceeded, measured, read_budget


@pytest.mark.skipif(not FILE.is_file(), reason="there is no budget yet")
def test_every_room_keeps_its_budget() -> None:
    assert exceeded(measured(), read_budget()) == []


def test_a_room_above_its_budget_or_without_one_is_named() -> None:
    sizes = {"data": {"lines": 12, "modules": 1}, "attic": {"lines": 3}}
    assert exceeded(sizes, {"data": {"lines": 11, "modules": 1}}) == [
        "data has 12 lines, and its budget is 11",
        "attic has 3 lines, and its budget is 0",
    ]
