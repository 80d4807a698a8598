from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.datasets import make
from oodbench.networks.base import build
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

CASES: list[tuple[str, dict[str, Any]]] = [
    ("LinearIRM", {}),
    ("LinearVREx", {}),
    ("LinearVREx", {"baseline": "target"}),
    ("LinearVREx", {"baseline": "both"}),
]


def data(environments: int = 3) -> Batch:
    """FES in float64, (E, 100, 10) and (E, 100, 1)."""
    options = {"variant": "FES", "num_examples": 100, "scales": [0.2, 2, 5][:environments]}
    found = make("LinearSEM", options).load(1).values()
    return Batch(
        torch.stack([e.x for e in found]).double(), torch.stack([e.y for e in found]).double()
    )


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
