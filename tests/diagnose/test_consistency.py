import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from oodbench.diagnose.consistency import (
    CHANGED,
    RIDGE,
    THETA,
    bound,
    consistency,
    curvature,
    gauss_newton,
    gauss_newton_diagonal,
    inconsistency,
    inputs,
    predict,
    risk,
    target,
    volume_ratio,
)
from oodbench.errors import UserError

PAPER = np.array([[0.01, 1], [1, 0.01]])


def random_hessians(environments: int, size: int) -> np.ndarray:
    factors = np.random.default_rng(size).normal(size=(environments, size, size + 2))
    return np.asarray(factors @ factors.transpose(0, 2, 1))


def test_the_diagonal_examples() -> None:
    assert inconsistency(PAPER) == pytest.approx(100)
    assert math.exp(volume_ratio(PAPER)) == pytest.approx(25.5025)
    assert math.exp(volume_ratio(PAPER) / 2) == pytest.approx(5.05)
    milder = np.array([[0.05, 1], [1, 0.05]])
    assert inconsistency(milder) == pytest.approx(20)
    assert math.exp(volume_ratio(milder)) == pytest.approx(5.5125)


def test_equal_hessians_are_as_consistent_as_can_be() -> None:
    same = np.stack([random_hessians(1, 3)[0]] * 3)
    assert inconsistency(same) == pytest.approx(1)
    assert volume_ratio(same) == pytest.approx(0, abs=1e-12)


def test_diagonals_and_diagonal_matrices_score_alike() -> None:
    diagonals = np.random.default_rng(0).uniform(0.1, 3, (4, 5))
    matrices = np.stack([np.diag(d) for d in diagonals])
    for score in (inconsistency, volume_ratio):
        assert score(diagonals, 0.01) == pytest.approx(score(matrices, 0.01))


def test_the_score_is_the_largest_rise_found_by_search() -> None:
    hessians = random_hessians(3, 2)
    angle = np.linspace(0, np.pi, 20_001)
    directions = np.stack([np.cos(angle), np.sin(angle)])
    losses = np.einsum("in,eij,jn->en", directions, hessians, directions)
    rises = (losses[:, None] / losses[None]).max()
    assert inconsistency(hessians) == pytest.approx(rises, rel=1e-5)


def test_it_does_not_depend_on_the_coordinates() -> None:
    hessians = random_hessians(3, 4)
    change = np.random.default_rng(1).normal(size=(4, 4))
    moved = change.T @ hessians @ change
    assert inconsistency(moved) == pytest.approx(inconsistency(hessians))
    assert volume_ratio(moved) == pytest.approx(volume_ratio(hessians))


def test_the_bound_holds_where_the_printed_one_does_not() -> None:
    one = np.array([[1.0], [100.0]])
    printed = 2 * math.exp(2 * volume_ratio(one))
    assert printed == pytest.approx(51.005)
    assert printed < inconsistency(one) < bound(one) == pytest.approx(100.01)
    for diagonals in np.random.default_rng(2).lognormal(0, 2, (200, 2, 3)):
        assert inconsistency(diagonals) <= bound(diagonals)


def test_the_printed_weights_are_a_patchwork() -> None:
    a, b = inputs().values()
    assert risk(CHANGED, a) == pytest.approx(risk(THETA, a), abs=1e-9)
    assert risk(CHANGED, b) > 100 * risk(THETA, b)
    for diagonal in (True, False):
        assert inconsistency(curvature(diagonal=diagonal), RIDGE) > 5000
    in_a, in_b = curvature(diagonal=True)
    assert in_a[5] < 1e-12 < 0.9 < in_b[5]


def test_gauss_newton_is_the_hessian_where_the_examples_are_fitted() -> None:
    x = inputs()["B"][::20]
    theta = torch.tensor([9.0, -5.0, 7.0, -6.0, 1.0, 2.0], dtype=torch.float64)
    fitted = predict(theta, x)

    def mean_loss(t: Tensor) -> Tensor:
        return (predict(t, x) - fitted).square().mean()

    def loss(residual: Tensor) -> Tensor:
        return residual.square().sum()

    exact = jacrev(jacrev(mean_loss))(theta).numpy()
    found = gauss_newton(partial(predict, x=x), loss, theta)
    np.testing.assert_allclose(found, exact, atol=1e-12)
    diagonal = gauss_newton_diagonal(partial(predict, x=x), loss, theta)
    np.testing.assert_allclose(diagonal, np.diag(exact), atol=1e-12)


def test_gauss_newton_of_a_logistic_regression_is_its_hessian() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    theta = torch.randn(4, generator=generator, dtype=torch.float64)

    def loss(logit: Tensor) -> Tensor:
        return torch.nn.functional.softplus(logit).sum()

    def outputs(t: Tensor) -> Tensor:
        return (x @ t).unsqueeze(1)

    p = (x @ theta).sigmoid()
    exact = (x.T * (p * (1 - p))) @ x / 30
    np.testing.assert_allclose(gauss_newton(outputs, loss, theta), exact.numpy(), atol=1e-12)


def test_the_target_is_the_staircase() -> None:
    x = torch.tensor([0.0, 0.4, 0.45, 0.5, 0.6, 0.7, 0.75, 0.8, 1.0])
    wanted = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.5, 2.0, 2.0])
    torch.testing.assert_close(target(x).squeeze(1), wanted)


def test_the_table() -> None:
    rows = {row[0]: row[1:] for row in consistency().rows}
    assert rows["diag(.01, 1), diag(1, .01)"][:2] == ["100", "25.5"]
    assert rows["1, 100"] == ["100", "5.05", "51", "100"]
    assert float(rows["patchwork, matrices"][0]) >= float(rows["patchwork, diagonals"][0])


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"positive definite.*-1; a larger ridge"):
        inconsistency([[1.0, -1.0], [1.0, 1.0]])
    with pytest.raises(UserError, match="at least two environments"):
        inconsistency([[1.0, 2.0]])
    with pytest.raises(UserError, match=r"not an array of the shape \(2, 3, 4\)"):
        volume_ratio(np.ones((2, 3, 4)))
    assert inconsistency([[1.0, -1.0], [1.0, 1.0]], ridge=2.0) == pytest.approx(3)
