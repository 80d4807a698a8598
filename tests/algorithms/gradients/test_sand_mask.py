import math

import pytest
import torch

from tests.helpers.algorithms.methods import tiny


@pytest.mark.parametrize(("tau", "k"), [(0.0, 0.5), (0.4, 2.0), (0.6, 1e3)])
def test_it_is_the_definition_in_every_component(tau: float, k: float) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(5, 40, generator=generator, dtype=torch.float64)
    weights, means = [], []
    for column in gradients.T.tolist():
        mean = sum(column) / 5
        variance = sum((g - mean) ** 2 for g in column) / 4
        net = abs(sum(math.copysign(1, g) for g in column)) / 5
        weights.append(max(0.0, math.tanh(k / variance * (net - tau))))
        means.append(mean)
    scale = 1e-10 + sum(weights) / len(weights)
    wanted = torch.tensor([w * m / scale for w, m in zip(weights, means, strict=True)]).double()
    torch.testing.assert_close(tiny("SANDMask", tau=tau, k=k).combine(gradients), wanted)


def test_the_size_of_the_pieces_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1)).double()
    whole = tiny("SANDMask").combine(gradients)
    monkeypatch.setattr("oodbench.algorithms.sand_mask.PIECE", 7)
    assert torch.equal(tiny("SANDMask").combine(gradients), whole)


def test_equal_gradients_have_full_weight_and_zeros_none() -> None:
    gradients = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    assert tiny("SANDMask", tau=0.5).combine(gradients).tolist() == pytest.approx([2.0, 0.0])
    assert tiny("SANDMask", tau=1.0).combine(gradients).tolist() == [0.0, 0.0]
