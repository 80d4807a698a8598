"""Gradients in their layers' own forms against the same gradients stacked."""

import pytest
import torch
from torch import Tensor

from oodbench.gradients import factored
from oodbench.gradients.factored import Dense, Gradients, LookedUpRows, OuterProducts, add

UNITS = 5


def outer_products(groups: int, positions: int, outputs: int = 4, inputs: int = 3) -> OuterProducts:
    left = torch.randn(UNITS, groups, outputs, positions, dtype=torch.float64)
    right = torch.randn(UNITS, groups, inputs, positions, dtype=torch.float64)
    return OuterProducts(left, right, torch.Size([groups * outputs, inputs]))


def looked_up() -> LookedUpRows:
    rows = torch.tensor([[0, 2, 2], [1, 1, 1], [0, 1, 2], [2, 2, 0], [0, 0, 0]])
    return LookedUpRows(torch.randn(UNITS, 3, 2, dtype=torch.float64), rows, torch.Size([6, 2]))


FORMS: dict[str, Gradients] = {
    "matrix": outer_products(1, 1),
    "positions": outer_products(1, 7),
    "groups": outer_products(2, 1),
    "both": outer_products(3, 2),
    "table": looked_up(),
    "dense": Dense(torch.randn(UNITS, 4, 2, dtype=torch.float64)),
}


def by_unit(gradients: Gradients) -> Tensor:
    """The gradients, (U, *shape), one after the other."""
    if isinstance(gradients, OuterProducts):
        pairs = zip(gradients.left, gradients.right, strict=True)
        made = [torch.einsum("gok,gik->goi", left, right) for left, right in pairs]
        return torch.stack(made).view(UNITS, *gradients.shape)
    if isinstance(gradients, LookedUpRows):
        table = torch.zeros(UNITS, *gradients.shape, dtype=torch.float64)
        for unit, (rows, cotangents) in enumerate(
            zip(gradients.rows, gradients.cotangents, strict=True)
        ):
            for row, cotangent in zip(rows, cotangents, strict=True):
                table[unit, row] += cotangent
        return table
    return gradients.stacked()


@pytest.mark.parametrize("block", [1, 40, 2**18], ids=lambda block: f"{block} at once")
@pytest.mark.parametrize("form", FORMS)
def test_sums_of_signs_and_means_are_those_of_the_stack(
    form: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few elements of the stack are made at once."""
    monkeypatch.setitem(factored.BLOCK, "cpu", block)
    wanted = by_unit(FORMS[form])
    torch.testing.assert_close(FORMS[form].stacked(), wanted)
    signs, mean = FORMS[form].signs()
    assert torch.equal(signs, wanted.sign().sum(0))
    torch.testing.assert_close(mean, wanted.mean(0))


@pytest.mark.parametrize(
    "second",
    [
        outer_products(1, 2),
        outer_products(1, 7),
        Dense(torch.randn(UNITS, 4, 3, dtype=torch.float64)),
    ],
    ids=["same positions", "other positions", "dense"],
)
def test_the_gradients_of_two_uses_are_added(second: Gradients) -> None:
    """Those of two layers of one shape stay as small as they are, however many positions each has."""
    first = outer_products(1, 2)
    found = add(first, second)
    torch.testing.assert_close(found.stacked(), by_unit(first) + by_unit(second))
    assert isinstance(found, OuterProducts) == isinstance(second, OuterProducts)
