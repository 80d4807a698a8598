"""RDM against its equation, written out by loops."""

import pytest
import torch
from torch import Tensor

from oodbench.conformance.tiny_problems import LAST, TASKS, tiny_batch
from tests.helpers.algorithms.methods import require_equation, tiny


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
    algorithm = tiny("RDM", task, penalty_weight=3.0, variance_weight=0.2)
    out = algorithm.outputs(tiny_batch(task, 4), LAST)
    risks = out.risks.tolist()
    worst, every = out.losses[risks.index(max(risks))], out.losses.flatten()
    mmd = mean_kernel(worst, worst) + mean_kernel(every, every) - 2 * mean_kernel(worst, every)
    wanted = out.risks.mean() + 3 * mmd + 0.2 * (variance(worst) + variance(every))
    require_equation(algorithm.objective(out), wanted, algorithm)


def test_a_single_example_has_no_variance_and_two_have_the_unbiased_one() -> None:
    task = TASKS["regression"]
    algorithm = tiny("RDM", task, 2, penalty_weight=0.0, variance_weight=1.0)
    out = algorithm.outputs(tiny_batch(task, environments=2, examples=1), LAST)
    first, second = out.losses.flatten().tolist()
    algorithm.objective(out)
    assert out.metrics["penalty"].item() == pytest.approx((first - second) ** 2 / 2)
