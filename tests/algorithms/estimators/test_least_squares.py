from typing import Any

import pytest
import torch

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.datasets import make
from oodbench.networks.base import build
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

LEAST_SQUARES: Any = algorithms.get("LeastSquares")


def fitted(x: torch.Tensor, y: torch.Tensor, intercept: bool = False) -> Any:
    """After one update on (E, B, D) and (E, B, C)."""
    problem = Problem((x.shape[2],), Task("regression", y.shape[2]), tuple("abcd"[: len(x)]), 1)
    network = build("Linear", {}, problem.input_shape, y.shape[2], 0)
    algorithm = LEAST_SQUARES(network, problem, LEAST_SQUARES.Hparams(intercept=intercept))
    algorithm.train_step(Batch(x, y), 0)
    return algorithm


@pytest.mark.parametrize("intercept", [False, True])
def test_the_residuals_are_orthogonal_to_the_inputs(intercept: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 50, 4).double() + 2, torch.randn(3, 50, 2).double() - 1
    algorithm = fitted(x, y, intercept)
    residual = y.flatten(0, 1) - algorithm.predict(x.flatten(0, 1))
    orthogonal = x.flatten(0, 1).T @ residual
    assert orthogonal.abs().max() < 1e-10
    assert (residual.mean(0).abs().max() < 1e-10) == intercept
    loss = algorithm.train_step(Batch(x, y), 1)["loss"]
    torch.testing.assert_close(loss, residual.square().mean())


def test_of_many_solutions_it_takes_the_shortest() -> None:
    x, y = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[5.0]]])
    assert fitted(x, y).weights.flatten().tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.slow
def test_training_by_gradients_ends_there() -> None:
    data = {"name": "LinearSEM", "variant": "FOU"}
    runs = []
    for algorithm in ({"name": "LeastSquares"}, {"name": "ERM", "hparams": {"lr": 3e-3}}):
        run = Run(single(data, algorithm, steps=1500, holdout=0), TrainSettings())
        assert run.run_steps(1500) is None
        runs.append(run.algorithm.predict(torch.eye(10)).detach())
    torch.testing.assert_close(runs[1], runs[0], atol=1e-3, rtol=0)


@pytest.mark.parametrize(("variant", "error"), [("FOS", 0.0087666), ("FEU", 0.8215026)])
def test_weights_of_a_large_sample_are_those_of_the_closed_form(variant: str, error: float) -> None:
    dataset = make("LinearSEM", {"variant": variant, "num_examples": 100_000})
    environments = list(dataset.load(0).values())
    x, y = (torch.stack([getattr(e, name) for e in environments]) for name in "xy")
    algorithm = fitted(x, y)
    found = dataset.predictor_metrics(algorithm.predict, 0)
    assert found["causal_error"] == pytest.approx(error, abs=2e-3)
    assert found["noncausal_error"] == pytest.approx(error, abs=2e-3)
