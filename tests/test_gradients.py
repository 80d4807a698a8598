from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Problem
from oodbench.gradients import combined_backward
from oodbench.networks import build
from oodbench.tasks import Task
from oodbench.tiny import PLAIN, TASKS, network_step, tiny_algorithm, tiny_batch, tiny_problem


class Recorder(Algorithm):
    """Keeps the stacked gradients it is given, and takes their sum."""

    def combine(self, gradients: Tensor) -> Tensor:
        self.__dict__.setdefault("seen", []).append(gradients.detach().clone())
        return gradients.sum(0)


@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_each_environments_gradient_is_that_of_a_backward_pass_of_its_own(task: Task) -> None:
    algorithm: Any = tiny_algorithm(Recorder, tiny_problem(task))
    batch = tiny_batch(task)
    loss = combined_backward(algorithm, batch, 0).loss
    named = list(algorithm.network.named_parameters())
    assert len(algorithm.seen) == len(named)
    risks = []
    for e in range(5):
        network = tiny_algorithm(Algorithm, tiny_problem(task)).network
        risk = task.losses(network(batch.x[e]), batch.y[e]).mean()
        risk.backward()  # type: ignore[no-untyped-call]
        risks.append(risk.item())
        for stacked, parameter in zip(algorithm.seen, network.parameters(), strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(stacked[e], parameter.grad)
    assert loss.item() == pytest.approx(sum(risks) / 5)
    for stacked, (_, parameter) in zip(algorithm.seen, named, strict=True):
        torch.testing.assert_close(parameter.grad, stacked.sum(0))


class Through(Algorithm):
    """Combines gradients as ERM does."""

    def combine(self, gradients: Tensor) -> Tensor:
        return super().combine(gradients)


@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_the_mean_of_the_gradients_is_the_gradient_of_the_mean(task: Task) -> None:
    batch, problem = tiny_batch(task), tiny_problem(task)
    combined = network_step(tiny_algorithm(Through, problem, PLAIN), batch, 0)
    erm = network_step(tiny_algorithm(Algorithm, problem, PLAIN), batch, 0)
    torch.testing.assert_close(combined, erm)


def test_fixed_parameters_get_no_gradient() -> None:
    task = Task("regression")
    problem = Problem((4,), task, ("a", "b"), 10)
    network = build("Linear", {}, (4,), 1, 0).double()
    algorithm = Recorder(network, problem, Recorder.Hparams(**PLAIN))
    combined_backward(algorithm, tiny_batch(task, environments=2), 0)
    assert {n for n, p in network.named_parameters() if p.grad is not None} == {
        "featurizer.1.weight"
    }
