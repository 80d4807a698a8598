from itertools import pairwise

import pytest
import torch

from oodbench.errors import UserError
from oodbench.networks.base import build
from oodbench.networks.wilds import WIDTHS


def test_shapes_and_parameters_are_those_of_the_example() -> None:
    """Counted by hand: 7-wide convolutions in pairs, transposed ones, the windows and the bins."""
    network = build("UNet1d", {}, (5, 12_800), 128, seed=0).eval()
    with torch.no_grad():
        assert network.featurizer(torch.randn(2, 5, 12_800)).shape == (2, 253)
        assert network(torch.randn(2, 5, 12_800)).shape == (2, 128)

    def twice(i: int, o: int) -> int:
        return (7 * i * o + o) + (7 * o * o + o) + 4 * o  # two normalisations

    down = sum(twice(i, o) for i, o in zip((5, *WIDTHS), WIDTHS, strict=False))
    up = sum(2 * w * w + w for w in WIDTHS[1:])
    merge = sum(twice(a + b, a) for a, b in pairwise(WIDTHS))
    wanted = down + up + merge + (15 * 200 + 1) + (253 * 128 + 128)
    assert sum(p.numel() for p in network.parameters()) == wanted


def test_a_window_sees_its_surroundings_alone() -> None:
    """What lies far away changes nothing: the coarsest resolution reaches a few thousand bases."""
    network = build("UNet1d", {}, (5, 12_800), 128, seed=0).eval().double()
    x = torch.randn(1, 5, 12_800, dtype=torch.float64)
    changed = x.clone()
    changed[..., -400:] += 1
    with torch.no_grad():
        difference = (network.featurizer(x) - network.featurizer(changed)).abs()[0]
    assert (difference[:150] == 0).all() and (difference[-4:] > 0).all()


def test_what_cannot_be() -> None:
    for shape in ((5,), (5, 100), (5, 12_801)):
        with pytest.raises(UserError, match="UNet1d takes tracks"):
            build("UNet1d", {}, shape, 128, 0)
