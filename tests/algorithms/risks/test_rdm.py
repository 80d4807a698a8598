"""RDM against its equation, written out by loops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import LAST, TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.steps import outputs

RDM: Any = algorithms.get("RDM")


def mean_kernel(left: Tensor, right: Tensor) -> Tensor:
    terms = [
        torch.exp(-(10.0**p) * (a - b) ** 2) for a in left for b in right for p in range(-4, 4)
    ]
    return torch.stack(terms).sum() / (len(left) * len(right))


def variance(values: Tensor) -> Tensor:
    mean = sum(values) / len(values)
    return torch.stack([(v - mean) ** 2 for v in values]).sum() / (len(values) - 1)


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_the_objective_and_its_gradient_are_those_of_the_equation(kind: str) -> None:
    task = TASKS[kind]
    values = {"penalty_weight": 3.0, "variance_weight": 0.2}
    algorithm = tiny_algorithm(RDM, tiny_problem(task), values)
    out = outputs(algorithm, tiny_batch(task, 4), LAST)
    found = algorithm.objective(out)
    risks = out.risks.tolist()
    worst, every = out.losses[risks.index(max(risks))], out.losses.flatten()
    mmd = mean_kernel(worst, worst) + mean_kernel(every, every) - 2 * mean_kernel(worst, every)
    wanted = out.risks.mean() + 3 * mmd + 0.2 * (variance(worst) + variance(every))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    trained = list(algorithm.parameters())
    ours = torch.autograd.grad(found, trained, retain_graph=True)
    for a, b in zip(ours, torch.autograd.grad(wanted, trained), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_a_single_example_has_no_variance_and_two_have_the_unbiased_one() -> None:
    task = TASKS["regression"]
    values = {"penalty_weight": 0.0, "variance_weight": 1.0}
    algorithm = tiny_algorithm(RDM, tiny_problem(task, ("a", "b")), values)
    out = outputs(algorithm, tiny_batch(task, environments=2, examples=1), LAST)
    first, second = out.losses.flatten().tolist()
    algorithm.objective(out)
    assert out.metrics["penalty"].item() == pytest.approx((first - second) ** 2 / 2)
