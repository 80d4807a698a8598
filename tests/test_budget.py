"""Every room keeps its budget: see docs/CONTRIBUTING.md."""

from tests.budget import exceeded, measured, read_budget, written


def test_every_room_keeps_its_budget() -> None:
    assert exceeded(measured(), read_budget()) == []


def test_a_room_above_its_budget_or_without_one_is_named() -> None:
    sizes = {"data": {"lines": 12, "modules": 1}, "attic": {"lines": 3}}
    assert exceeded(sizes, {"data": {"lines": 11, "modules": 1}}) == [
        "data has 12 lines, and its budget is 11",
        "attic has 3 lines, and its budget is 0",
    ]


def test_remarks_stay_beside_the_numbers_of_a_budget_that_is_written() -> None:
    before = "[data]\nlines = 11  # asked for\nmodules = 2\n\n[list]\nlines = 3  # gone\n"
    assert written({"data": {"lines": 12, "modules": 2}}, before).endswith(
        "\n[data]\nlines = 12  # asked for\nmodules = 2\n"
    )
