import math
from typing import Any

import pytest
import torch

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_problem
from oodbench.hparams import defaults, distributions


def sand_mask(**values: object) -> Any:
    return tiny_algorithm(algorithms.get("SANDMask"), tiny_problem(TASKS["binary"]), values)


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
    torch.testing.assert_close(sand_mask(tau=tau, k=k).combine(gradients), wanted)


def test_the_size_of_the_pieces_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1)).double()
    whole = sand_mask().combine(gradients)
    monkeypatch.setattr("oodbench.algorithms.sand_mask.PIECE", 7)
    assert torch.equal(sand_mask().combine(gradients), whole)


def test_equal_gradients_have_full_weight_and_zeros_none() -> None:
    gradients = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    assert sand_mask(tau=0.5).combine(gradients).tolist() == pytest.approx([2.0, 0.0])
    assert sand_mask(tau=1.0).combine(gradients).tolist() == [0.0, 0.0]


def test_the_ranges_are_domainbeds() -> None:
    space = distributions(algorithms.get("SANDMask").Hparams)
    assert [str(space[name]) for name in ("tau", "k")] == [
        "uniform(0.0, 1.0)",
        "log_uniform(0.001, 100000.0)",
    ]
    assert defaults(algorithms.get("SANDMask").Hparams)["k"] == 10
