"""Linear regressions in closed form and by many compiled updates, ICP's search, and ISR."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from oodbench.algorithms.icp import p_values
from scipy import stats
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import Tensor

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.datasets import make
from oodbench.networks.base import build
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.algorithms.methods import fitted


def least_squares(x: Tensor, y: Tensor, intercept: bool = False) -> Any:
    return fitted("LeastSquares", x, y, Task("regression", y.shape[2]), intercept=intercept)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_residuals_are_orthogonal_to_the_inputs(intercept: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 50, 4).double() + 2, torch.randn(3, 50, 2).double() - 1
    algorithm = least_squares(x, y, intercept)
    residual = y.flatten(0, 1) - algorithm.predict(x.flatten(0, 1))
    orthogonal = x.flatten(0, 1).T @ residual
    assert orthogonal.abs().max() < 1e-10
    assert (residual.mean(0).abs().max() < 1e-10) == intercept
    loss = algorithm.train_step(Batch(x, y), 1)["loss"]
    torch.testing.assert_close(loss, residual.square().mean())


def test_of_many_solutions_least_squares_take_the_shortest() -> None:
    x, y = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[5.0]]])
    assert least_squares(x, y).weights.flatten().tolist() == pytest.approx([0.6, 0.8])


CASES: list[tuple[str, dict[str, Any]]] = [
    ("LinearIRM", {}),
    ("LinearVREx", {}),
    ("LinearVREx", {"baseline": "target"}),
    ("LinearVREx", {"baseline": "both"}),
]


def sem(variant: str, trial: int = 0, **options: object) -> tuple[Tensor, Tensor]:
    """Inputs (E, B, D) and targets (E, B, 1)."""
    found = make("LinearSEM", {"variant": variant, **options}).load(trial).values()
    return torch.stack([e.x for e in found]), torch.stack([e.y for e in found])


def data(environments: int = 3) -> Batch:
    """FES in float64, (E, 100, 10) and (E, 100, 1)."""
    x, y = sem("FES", 1, num_examples=100, scales=[0.2, 2, 5][:environments])
    return Batch(x.double(), y.double())


def made(name: str, environments: int = 3, **values: object) -> Any:
    cls: Any = algorithms.get(name)
    names = tuple(map(str, range(environments)))
    problem = Problem((10,), Task("regression"), names, 1)
    return cls(build("Linear", {}, (10,), 1, 0), problem, cls.Hparams(intercept=False, **values))


def written_out(name: str, theta: Tensor, batch: Batch, r: float, baseline: str) -> Tensor:
    """The objective as the papers' code has it, from the examples and by autograd."""
    risk, penalty, risks = torch.zeros(()), torch.zeros(()), []
    for x, y in zip(batch.x, batch.y, strict=True):
        if name == "LinearIRM":
            w = torch.ones(10, 1).double().requires_grad_()
            error = (x @ theta.T @ w - y).square().mean()
            (gradient,) = torch.autograd.grad(error, w, create_graph=True)
            risk, penalty = risk + error, penalty + gradient.square().mean()
        else:
            predictions = x @ theta.T
            error = (predictions - y).square().mean()
            if baseline != "none":
                error = error - y.var()
            if baseline == "both":
                error = error - predictions.var()
            risk = risk + error
            risks.append(error)
    for i, first in enumerate(risks):
        for second in risks[i + 1 :]:
            penalty = penalty + (first - second) ** 2
    return r * risk + (1 - r) * penalty


@pytest.mark.parametrize("risk_weight", [0.0, 1e-3, 0.3, 1.0])
@pytest.mark.parametrize(("name", "values"), CASES)
def test_the_gradient_is_autograds(name: str, values: dict[str, Any], risk_weight: float) -> None:
    batch, algorithm = data(), made(name, **values)
    torch.manual_seed(0)
    theta = (algorithm.theta + torch.randn(algorithm.theta.shape)).requires_grad_()
    objective = written_out(name, theta, batch, risk_weight, values.get("baseline", "none"))
    (wanted,) = torch.autograd.grad(objective, theta)
    quadratics = [q.numpy() for q in algorithm.quadratics(batch.x, batch.y)]
    found = type(algorithm).gradient(theta.detach().numpy(), *quadratics, risk_weight)
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["LinearIRM", "LinearVREx"])
def test_compiled_updates_are_those_of_torchs_adam_on_the_examples(name: str) -> None:
    batch = data(2)
    algorithm = made(name, 2, risk_weight=1e-2, updates=150, lr=3e-3)
    theta = algorithm.theta.clone().requires_grad_()
    for _ in range(2):
        algorithm.train_step(batch, 0)
    optimizer = torch.optim.Adam([theta], lr=3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        written_out(name, theta, batch, 1e-2, "none").backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    moved = float((theta.detach() - made(name, 2).theta).abs().max())
    assert moved > 0.1
    torch.testing.assert_close(algorithm.theta, theta.detach(), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(algorithm.weights[:, 0], theta.detach().sum(0))


@pytest.mark.slow
def test_a_step_of_many_updates_is_many_steps() -> None:
    batch = data()
    many, one = made("LinearIRM", updates=60), made("LinearIRM", updates=1)
    loss = many.train_step(batch, 0)["loss"]
    for step in range(60):
        last = one.train_step(batch, step)["loss"]
    torch.testing.assert_close(many.theta, one.theta, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss, last)
    residual = many.predict(batch.x.flatten(0, 1)) - batch.y.flatten(0, 1)
    torch.testing.assert_close(loss, residual.square().mean())


# V-REx needs more examples: an effect's weight of b costs b^2 in risks that differ by O(n^-1/2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "examples"),
    [("LinearIRM", 5000), pytest.param("LinearVREx", 50_000, marks=pytest.mark.nightly)],
)
def test_they_find_the_causes_where_the_effects_noise_differs(name: str, examples: int) -> None:
    sem = {"name": "LinearSEM", "variant": "FOU", "num_examples": examples}
    run = Run(single(sem, {"name": name}, steps=100, holdout=0), TrainSettings())
    assert run.run_steps(100) is None
    found = {e.metric: e.value for e in run.evaluate() if e.environment is None}
    assert found["causal_error"] < 0.003
    assert found["noncausal_error"] < 0.003


def icp(x: Tensor, y: Tensor, **values: Any) -> list[float]:
    """The weights after an update on (E, B, D) and (E, B, 1)."""
    algorithm = fitted("ICP", x, y, Task("regression"), intercept=False, **values)
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


def one_by_one(x: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """The weights of what all accepted subsets share, subset after subset, by scikit-learn and scipy."""
    count, dim = len(x), x.shape[2]
    accepted = list[set[int]]()
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
                accepted.append({*subset})
    weights = np.zeros(dim)
    shared = sorted(set.intersection(*accepted)) if accepted else []
    if shared:
        chosen = x[:, :, shared].reshape(-1, len(shared))
        weights[shared] = LinearRegression(fit_intercept=False).fit(chosen, y.reshape(-1)).coef_
    return weights


@pytest.mark.parametrize(
    ("variant", "alpha"),
    [("FOU", 1e-4), ("FOU", 0.5), ("FOS", 0.05), ("FEU", 0.05), ("POU", 1e-4), ("PES", 0.5)],
)
def test_icp_is_the_search_over_all_subsets(variant: str, alpha: float) -> None:
    x, y = sem(variant, dim=2, num_examples=200)
    found = icp(x, y, alpha=alpha)
    wanted = one_by_one(x.double().numpy(), y.squeeze(2).double().numpy(), alpha)
    assert found == pytest.approx(wanted.tolist(), abs=1e-9)


def test_dependent_inputs_are_no_obstacle() -> None:
    x, y = sem("FOU", dim=2)
    weights = icp(torch.cat([x, x[:, :, :1]], 2), y)
    assert weights == [0, pytest.approx(1, abs=0.2), 0, 0, 0]


BOTH = ["ISR_Mean", "ISR_Cov"]


def isr(name: str, x: Tensor, y: Tensor, **values: object) -> Any:
    """The method after one update on (E, B, D) and (E, B)."""
    classes = int(y.max()) + 1
    task = Task("binary") if classes == 2 else Task("multiclass", classes)
    return fitted(name, x, y, task, "Head", **values)


def examples(environments: int) -> Any:
    """Inputs (E, B, 10) and targets (E, B) of the third linear unit test."""
    options = {"example": 3, "scrambled": True, "num_examples": 600}
    data = make("LinearUnitTests", {**options, "num_environments": environments}).load(0)
    chosen = [data[f"E{e}"] for e in range(environments)]
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
def test_isr_is_a_regression_without_the_directions_that_differ(
    name: str, environments: int, count: int
) -> None:
    x, y = examples(environments)
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
