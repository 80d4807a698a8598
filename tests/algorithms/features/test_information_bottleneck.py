"""IB-ERM, IB-IRM and spectral decoupling against their equations, written out by loops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Outputs
from oodbench.conformance.tiny_problems import LAST, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    require_equation,
    scale_gradient,
    tiny,
)


def made(name: str, task: Task, step: int = LAST, **values: Any) -> tuple[Any, Outputs]:
    algorithm = tiny(name, task, **values)
    return algorithm, algorithm.outputs(tiny_batch(task, 5), step)


def variances(values: Tensor) -> Tensor:
    """The mean over environments and coordinates of (E, B, K) of the variances over examples."""
    squares = (values - values.mean(1, keepdim=True)).square().sum(1)
    return (squares / (values.shape[1] - 1)).mean()


@ON_EVERY_TASK
def test_sd_penalises_the_mean_squared_logit(task: Task) -> None:
    algorithm, out = made("SD", task, penalty_weight=0.3)
    wanted = out.risks.mean() + 0.3 * out.logits.square().mean()
    require_equation(algorithm.objective(out), wanted, algorithm)


def test_sd_can_be_the_papers_code_of_colored_mnist() -> None:
    values: dict[str, Any] = {"initial_weight": 2e-5, "penalty_weight": 1.0, "anneal_steps": 450}
    for step, scale, weight in ((449, 1.0, 2e-5), (450, 2e-5, 1.0)):
        algorithm, out = made("SD", BINARY, step, divide_by_weight=True, **values)
        wanted = scale * (out.risks.mean() + weight * out.logits.square().mean())
        torch.testing.assert_close(algorithm.objective(out), wanted)


@ON_EVERY_TASK
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("of", ["features", "logits"])
def test_ib_erm_penalises_the_variance(task: Task, of: str, pooled: bool) -> None:
    values: dict[str, Any] = {"penalty_weight": 0.3, "variance_of": of, "pooled": pooled}
    algorithm, out = made("IB_ERM", task, **values)
    given = out.features if of == "features" else out.logits
    if pooled:
        given = given.flatten(0, 1).unsqueeze(0)
    wanted = out.risks.mean() + 0.3 * variances(given)
    require_equation(algorithm.objective(out), wanted, algorithm)


@pytest.mark.parametrize(("step", "weights"), [(2, (1, 0)), (4, (50, 0)), (9, (50, 0.3))])
@pytest.mark.parametrize("divided", [False, True])
def test_ib_irm_has_both_penalties_each_from_a_step_of_its_own(
    step: int, weights: tuple[float, float], divided: bool
) -> None:
    values = {"penalty_weight": 50.0, "anneal_steps": 4, "divide_by_weight": divided}
    values |= {"bottleneck_weight": 0.3, "bottleneck_anneal_steps": 9}
    algorithm, out = made("IB_IRM", BINARY, step, **values)
    gradients = [scale_gradient(BINARY, out.logits[e], out.targets[e]) ** 2 for e in range(5)]
    irm, ib = weights
    wanted = out.risks.mean() + irm * torch.stack(gradients).mean() + ib * variances(out.features)
    wanted = wanted / (50 if divided and step >= 4 else 1)
    require_equation(algorithm.objective(out), wanted, algorithm)
