"""ISR beside loops over classes and environments, and beside scikit-learn's regression."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from oodbench.datasets import make
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import fitted

BOTH = ["ISR_Mean", "ISR_Cov"]


def isr(name: str, x: Tensor, y: Tensor, **values: object) -> Any:
    """The method after one update on (E, B, D) and (E, B)."""
    classes = int(y.max()) + 1
    task = Task("binary") if classes == 2 else Task("multiclass", classes)
    return fitted(name, x, y, task, "Head", **values)


def examples(example: int, environments: int, split: str = "", count: int = 600) -> Any:
    """Inputs (E, B, 10) and targets (E, B) of a linear unit test."""
    options = {"example": example, "scrambled": True, "num_examples": count}
    data = make("LinearUnitTests", {**options, "num_environments": environments}).load(0)
    chosen = [data[f"E{e}{split}"] for e in range(environments)]
    return torch.stack([c.x for c in chosen]).double(), torch.stack([c.y for c in chosen])


def principal_components(x: Tensor, y: Tensor, count: int) -> Any:
    """The first principal components of the means of class 1, (D, K)."""
    means = np.stack([x[e][y[e] == 1].mean(0).numpy() for e in range(len(x))])
    return np.linalg.eigh(np.cov(means.T))[1][:, ::-1][:, :count]


def flag_mean(x: Tensor, y: Tensor, count: int) -> Any:
    """The first left singular vectors of all pairs' directions side by side, (D, K)."""
    columns = []
    for label in (0, 1):
        covariances = [np.cov(x[e][y[e] == label].numpy().T) for e in range(len(x))]
        for a, b in itertools.combinations(covariances, 2):
            values, vectors = np.linalg.eigh(a - b)
            columns.append(vectors[:, np.argsort(-np.abs(values))[:count]])
    return np.linalg.svd(np.concatenate(columns, 1))[0][:, :count]


@pytest.mark.parametrize(("environments", "count"), [(3, 2), (7, 5)])
@pytest.mark.parametrize("name", BOTH)
def test_it_is_a_regression_without_the_directions_that_differ(
    name: str, environments: int, count: int
) -> None:
    x, y = examples(3, environments)
    found = isr(name, x, y, spurious=count, l2=0.5)
    directions = {"ISR_Mean": principal_components, "ISR_Cov": flag_mean}[name](x, y, count)
    inputs, targets = x.flatten(0, 1).numpy(), y.flatten().numpy()
    projected = inputs - inputs @ directions @ directions.T
    options: dict[str, Any] = {"tol": 1e-12, "max_iter": 10_000, "solver": "newton-cholesky"}
    wanted = LogisticRegression(C=2.0, **options).fit(projected, targets)
    assert np.abs(found.weights.numpy().T @ directions).max() < 1e-9
    scores = found.predict(x.flatten(0, 1)).squeeze(1).numpy()
    np.testing.assert_allclose(scores, wanted.decision_function(projected), rtol=0, atol=2e-5)


def test_with_three_classes_the_chosen_ones_means_count() -> None:
    torch.manual_seed(0)
    y = torch.arange(60).remainder(3).expand(3, 60)
    x = torch.randn(3, 60, 4).double()
    x[:, :, 0] += y
    x[:, :, 1] += 9 * torch.arange(3)[:, None] * (y == 1)
    weights = isr("ISR_Mean", x, y, spurious=1).weights
    assert weights.shape == (4, 3)
    assert weights[1].abs().max() < 0.1 * weights[0].abs().max()


def test_with_six_environments_the_means_solve_what_erm_does_not() -> None:
    """The oracle's errors are 0 and 0.0126 (arXiv:2102.10867); ERM's 0.35 to 0.5."""
    for example, error in ((2, 0.04), (3, 0.02)):
        algorithm = isr("ISR_Mean", *examples(example, 6, count=4000), spurious=5)
        x, y = examples(example, 6, "-test", count=4000)
        wrong = (algorithm.predict(x.flatten(0, 1)).squeeze(1) > 0) != y.flatten().bool()
        assert wrong.double().mean() < error


@pytest.mark.parametrize("name", BOTH)
def test_without_a_class_in_two_environments_nothing_is_left_out(name: str) -> None:
    x = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0)).double()
    y = torch.zeros(2, 8)
    y[0, :4] = 1
    algorithm = isr(name, x, y, spurious=1)
    both = isr(name, x, y.roll(1, 0) + y - y * y.roll(1, 0), spurious=1)
    assert algorithm.weights.norm() > 0 and both.weights.norm() > 0
    if name == "ISR_Mean":
        plain = LogisticRegression(tol=1e-12, solver="newton-cg").fit(x.flatten(0, 1), y.flatten())
        np.testing.assert_allclose(algorithm.weights[:, 0], plain.coef_[0], atol=1e-6)
