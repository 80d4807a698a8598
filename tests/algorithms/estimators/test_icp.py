import itertools
from typing import Any

import numpy as np
import pytest
import torch
from oodbench.algorithms.icp import p_values
from scipy import stats
from sklearn.linear_model import LinearRegression

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.datasets import make
from oodbench.networks.base import build
from oodbench.tasks import Task

ICP: Any = algorithms.get("ICP")


def icp(x: torch.Tensor, y: torch.Tensor, **values: object) -> list[float]:
    """The weights after an update on (E, B, D) and (E, B, 1)."""
    problem = Problem((x.shape[2],), Task("regression"), tuple(map(str, range(len(x)))), 1)
    algorithm = ICP(
        build("Linear", {}, (x.shape[2],), 1, 0), problem, ICP.Hparams(intercept=False, **values)
    )
    algorithm.train_step(Batch(x, y), 0)
    weights: list[float] = algorithm.weights.flatten().tolist()
    return weights


def test_spreads_of_few_examples_are_compared_with_their_degrees_of_freedom() -> None:
    """Of a ratio F of variances with 2 and n degrees of freedom P(F > r) = (1 + 2r / n)^(-n / 2)."""
    scales = np.array([1.0, 1.0, 40.0])
    y = scales[:, None] * np.array([-1.0, 0.0, 1.0])  # all means are equal
    (found,) = p_values(np.zeros((3, 3, 1)), y, np.array([[True]]))
    ratios = [scales[e] ** 2 / np.delete(y, e, 0).var(ddof=1) for e in range(3)]
    above = [(1 + 2 * r / 5) ** (-5 / 2) for r in ratios]  # 6 examples outside: 5 degrees
    assert found == pytest.approx(3 * min(2 * 2 * min(p, 1 - p) for p in above), rel=1e-9)


def sem(variant: str, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    data = make("LinearSEM", {"variant": variant, "dim": 2, **options}).load(0).values()
    return torch.stack([e.x for e in data]), torch.stack([e.y for e in data])


def one_by_one(x: np.ndarray, y: np.ndarray, alpha: float) -> tuple[set[tuple[int, ...]], Any]:
    """The accepted subsets and the weights, subset after subset, by scikit-learn and scipy."""
    count, dim = len(x), x.shape[2]
    accepted = set()
    for size in range(1, dim + 1):
        for subset in itertools.combinations(range(dim), size):
            chosen = x[:, :, list(subset)]
            model = LinearRegression(fit_intercept=False).fit(
                chosen.reshape(-1, size), y.reshape(-1)
            )
            residuals = [y[e] - model.predict(chosen[e]) for e in range(count)]
            p_values = []
            for e in range(count):
                rest = np.concatenate([r for i, r in enumerate(residuals) if i != e])
                ratio = np.var(residuals[e], ddof=1) / np.var(rest, ddof=1)
                below = stats.f.cdf(ratio, len(residuals[e]) - 1, len(rest) - 1)
                p_mean = stats.ttest_ind(residuals[e], rest, equal_var=False).pvalue
                p_values.append(2 * min(p_mean, 2 * min(below, 1 - below)))
            if min(p_values) * count > alpha:
                accepted.add(subset)
    weights = np.zeros(dim)
    shared = sorted(set.intersection(*map(set, accepted))) if accepted else []
    if shared:
        chosen = x[:, :, shared].reshape(-1, len(shared))
        weights[shared] = LinearRegression(fit_intercept=False).fit(chosen, y.reshape(-1)).coef_
    return accepted, weights


@pytest.mark.parametrize(
    ("variant", "alpha"),
    [("FOU", 1e-4), ("FOU", 0.5), ("FOS", 0.05), ("FEU", 0.05), ("POU", 1e-4), ("PES", 0.5)],
)
def test_it_is_the_search_over_all_subsets(variant: str, alpha: float) -> None:
    x, y = sem(variant, num_examples=200)
    found = icp(x, y, alpha=alpha)
    _, wanted = one_by_one(x.double().numpy(), y.squeeze(2).double().numpy(), alpha)
    assert found == pytest.approx(wanted.tolist(), abs=1e-9)


def test_dependent_inputs_are_no_obstacle() -> None:
    x, y = sem("FOU")
    weights = icp(torch.cat([x, x[:, :, :1]], 2), y)
    assert weights == [0, pytest.approx(1, abs=0.2), 0, 0, 0]
