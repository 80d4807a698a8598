"""The linear unit tests against the text of arXiv:2102.10867 and closed forms."""

import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.datasets import make
from oodbench.sweep.plan import single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

NAME = "LinearUnitTests"


def errors(trial: int, **options: Any) -> list[float]:
    """The test errors of pooled least squares with an intercept, by environment."""
    data = make(NAME, {"example": 1, **options}).load(trial)

    def inputs(name: str) -> Tensor:
        x = data[name].x.double()
        return torch.cat([x, torch.ones(len(x), 1, dtype=torch.double)], 1)

    x = torch.cat([inputs(f"E{e}") for e in range(3)])
    y = torch.cat([data[f"E{e}"].y.double() for e in range(3)])
    weights = torch.linalg.lstsq(x, y).solution
    found = [(inputs(f"E{e}-test") @ weights - data[f"E{e}-test"].y) for e in range(3)]
    return [error.square().mean().item() for error in found]


ORACLE = [(0.0516, 0.0010), (11.273, 0.171), (19.932, 0.314)]
ERM = [(1.555, 0.57), (14.33, 1.74), (24.32, 2.63)]
"""The stored errors, and their standard deviations over data seeds."""


@pytest.mark.parametrize(
    ("options", "trials", "stored"),
    [({"oracle": True, "scrambled": v}, 4, ORACLE) for v in (False, True)] + [({}, 10, ERM)],
)
def test_least_squares_on_example_1_has_the_stored_error(
    options: dict[str, bool], trials: int, stored: list[tuple[float, float]]
) -> None:
    found = [errors(trial, **options) for trial in range(trials)]
    for values, (mean, deviation) in zip(zip(*found, strict=True), stored, strict=True):
        assert abs(statistics.mean(values) - mean) < 4 * deviation / trials**0.5


@pytest.mark.parametrize("name", ["E0", "E1", "E2"])
def test_example_2_has_the_shares_of_the_text(name: str) -> None:
    agree, cows = {"E0": (0.95, 0.3), "E1": (0.97, 0.5), "E2": (0.99, 0.7)}[name]
    data = make(NAME, {"example": 2}).load(0)
    x, y = data[name].x, data[name].y
    assert y.mean().item() == pytest.approx(cows, abs=0.02)
    assert torch.equal(y > 0.5, x[:, :5].sum(1) > 0)
    grass = x[:, 5:].mean(1) > 0
    assert (grass == (y > 0.5)).float().mean().item() == pytest.approx(agree, abs=0.01)
    assert x[y > 0.5, :5].mean().item() == pytest.approx(0.01, rel=0.01)
    assert x[y > 0.5, 0].std().item() == pytest.approx(0.01 / 10**0.5, rel=0.05)
    test = data[f"{name}-test"]
    wrong = ((test.x[:, 5:].mean(1) > 0) != (test.y > 0.5)).float().mean().item()
    share = agree * cows + (1 - agree) * (1 - cows)  # of grass
    assert wrong == pytest.approx(share * (1 - cows) + (1 - share) * cows, abs=0.02)


def test_example_3_has_two_classes_around_means_of_opposite_sign() -> None:
    data = make(NAME, {"example": 3}).load(0)
    means = []
    for name in ("E0", "E0-validation", "E1", "E0-test"):
        x, y = data[name].x, data[name].y
        assert y.mean() == 0.5
        zero, one = x[y < 0.5], x[y > 0.5]
        torch.testing.assert_close(zero[:, :5].mean(0), torch.full((5,), 0.1), atol=0.01, rtol=0)
        torch.testing.assert_close(one[:, :5].mean(0), torch.full((5,), -0.1), atol=0.01, rtol=0)
        assert zero[:, 0].std().item() == pytest.approx(0.1, rel=0.05)
        means.append(zero[:, 5:].mean(0))
        if name != "E0-test":
            torch.testing.assert_close(one[:, 5:].mean(0), -means[-1], atol=0.01, rtol=0)
            assert zero[:, 5].std().item() == pytest.approx(0.1, rel=0.05)
    torch.testing.assert_close(means[0], means[1], atol=0.01, rtol=0)
    assert (means[0] - means[2]).abs().max() > 0.1
    torch.testing.assert_close(means[3], torch.zeros(5), atol=0.15, rtol=0)


@pytest.mark.parametrize("example", [1, 2, 3])
def test_scrambling_rotates_and_the_oracle_shuffles_one_block(example: int) -> None:
    options = {"example": example, "num_examples": 200}
    plain = make(NAME, options).load(1)
    scrambled = make(NAME, {**options, "scrambled": True}).load(1)
    oracle = make(NAME, {**options, "oracle": True}).load(1)
    for name in ("E0", "E2-validation", "E1-test"):
        x, z = plain[name].x, scrambled[name].x
        torch.testing.assert_close(x @ x.T, z @ z.T, atol=1e-3, rtol=1e-4)
        assert torch.equal(plain[name].y, scrambled[name].y)
        assert torch.equal(x[:, :5], oracle[name].x[:, :5])
        torch.testing.assert_close(x[:, 5:].sort(0).values, oracle[name].x[:, 5:].sort(0).values)
        assert torch.equal(x, oracle[name].x) == name.endswith("test")


def test_a_run_is_scored_on_the_draws_that_it_is_not_trained_on() -> None:
    dataset = {"name": NAME, "example": 2, "num_examples": 20}
    run = Run(single(dataset, {"name": "ERM"}, steps=2), TrainSettings())
    run.run_steps(2)
    assert run.names == ("E0", "E1", "E2")
    scored = {(e.environment, e.split) for e in run.evaluate()}
    assert scored == {(f"E{e}-{part}", "in") for e in range(3) for part in ("validation", "test")}
