"""CAD and CondCAD against sums over examples, one by one."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.steps import outputs

CAD: Any = algorithms.get("CAD")
COND_CAD: Any = algorithms.get("CondCAD")


def penalty(features: Tensor, labels: Tensor | None, temperature: float) -> Tensor:
    """T / .07 times the mean over i of -log of the other environments' part, of (E, B, F) features."""
    count, examples = features.shape[:2]
    places = [(e, i) for e in range(count) for i in range(examples)]
    terms = []
    for e, i in places:
        others, every = [], []
        for d, j in places:
            same_class = labels is None or labels[d, j] == labels[e, i]
            if (d, j) != (e, i) and same_class:
                score = torch.dot(features[e, i], features[d, j]) / temperature
                every.append(score)
                others += [score] if d != e else []
        if others:
            terms.append(torch.stack(every).logsumexp(0) - torch.stack(others).logsumexp(0))
    return temperature / 0.07 * torch.stack(terms).mean()


@pytest.mark.parametrize("method", [CAD, COND_CAD])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_the_objective_and_its_gradient_are_those_of_the_equation(method: Any, kind: str) -> None:
    task = TASKS[kind]
    values = {"penalty_weight": 0.3, "temperature": 0.05}
    algorithm: Any = tiny_algorithm(method, tiny_problem(task), values)
    out = outputs(algorithm, tiny_batch(task), 0)
    labels = out.targets if method is COND_CAD else None
    wanted = out.risks.mean() + 0.3 * penalty(out.features, labels, 0.05)
    found = algorithm.objective(out)
    torch.testing.assert_close(found, wanted)
    parameters = list(algorithm.network.parameters())
    for one, other in zip(
        torch.autograd.grad(found, parameters, retain_graph=True),
        torch.autograd.grad(wanted, parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_environments_that_are_alike_cost_the_logarithm_of_their_number() -> None:
    """With equal features the part of the E - 1 others is (E - 1) B / (E B - 1)."""
    task = TASKS["binary"]
    algorithm: Any = tiny_algorithm(CAD, tiny_problem(task), {"temperature": 0.1})
    out = outputs(algorithm, tiny_batch(task), 0)
    out = replace(out, features=torch.ones_like(out.features))
    wanted = 0.1 / 0.07 * math.log((5 * 6 - 1) / (4 * 6))
    assert algorithm.penalty(out).item() == pytest.approx(wanted)


def test_large_features_cost_much_and_stay_finite() -> None:
    task = TASKS["binary"]
    algorithm: Any = tiny_algorithm(CAD, tiny_problem(task), dtype=torch.float32)
    batch = tiny_batch(task)
    batch = replace(batch, x=1e4 * batch.x.float(), y=batch.y.float())
    out = outputs(algorithm, batch, 0)
    found = algorithm.penalty(out)
    found.backward()
    assert found.isfinite() and found > 100
    grads = [p.grad for p in algorithm.network.featurizer.parameters() if p.grad is not None]
    assert grads and all(g.isfinite().all() for g in grads)


def test_an_example_without_a_partner_does_not_count() -> None:
    """Class 1 is in one environment alone: only class 0 has a mean."""
    task = TASKS["binary"]
    algorithm: Any = tiny_algorithm(COND_CAD, tiny_problem(task))
    out = outputs(algorithm, tiny_batch(task), 0)
    out.targets.zero_()
    out.targets[2, :3] = 1.0
    torch.testing.assert_close(
        algorithm.penalty(out), penalty(out.features, out.targets, algorithm.hparams.temperature)
    )
    out.targets.copy_(torch.arange(30.0).view(5, 6))
    assert algorithm.penalty(out) == 0
