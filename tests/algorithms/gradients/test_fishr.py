"""Fishr against the gradients of single examples, one by one."""

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch
from oodbench.conformance.tiny_problems import LAST, PLAIN, TASKS, network_step, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, ON_EVERY_TASK, gradient, tiny


def variances(algorithm: Algorithm, batch: Batch) -> Tensor:
    """v_e, (E, K): a backward pass to the classifier for each example."""
    head = list(algorithm.network.classifier.parameters())
    out = algorithm.outputs(batch, LAST)
    found = []
    for losses in out.losses:
        gradients = [gradient(loss, head, graph=True) for loss in losses]
        mean = torch.stack(gradients).mean(0)
        found.append(torch.stack([(g - mean) ** 2 for g in gradients]).mean(0))
    return torch.stack(found)


def distance(v: Tensor) -> Tensor:
    """mean_e mean_k (v_e - mean v)_k^2."""
    return torch.stack([((one - v.mean(0)) ** 2).mean() for one in v]).mean()


@ON_EVERY_TASK
def test_variances_are_those_of_the_gradients_of_examples(task: Task) -> None:
    algorithm, batch = tiny("Fishr", task), tiny_batch(task)
    found = algorithm.head_variances(algorithm.outputs(batch, 0))
    torch.testing.assert_close(found, variances(algorithm, batch))


def test_a_step_without_an_average_is_that_of_the_equation() -> None:
    task = TASKS["multiclass"]
    values = {**PLAIN, "ema": 0.0, "penalty_weight": 300.0, "anneal_steps": 0}
    algorithm, batch = tiny("Fishr", task, **values), tiny_batch(task)
    total = algorithm.outputs(batch, 0).risks.mean() + 300 * distance(variances(algorithm, batch))
    wanted = gradient(total, algorithm.network.parameters())
    torch.testing.assert_close(network_step(algorithm, batch, LAST), wanted)


def test_the_penalty_grows_with_the_average_and_its_gradient_is_of_this_step() -> None:
    """a <- .95 a + .05 v from 0 on, and a / .05 stands for v."""
    algorithm = tiny("Fishr", **{**PLAIN, "penalty_weight": 2.0, "anneal_steps": 0})
    average = torch.zeros_like(algorithm.variances)
    for step in range(3):
        batch = tiny_batch(BINARY, seed=step)
        average = 0.95 * average.detach() + 0.05 * variances(algorithm, batch)
        total = algorithm.outputs(batch, 0).risks.mean() + 2 * distance(average / 0.05)
        wanted = gradient(total, algorithm.network.parameters())
        torch.testing.assert_close(network_step(algorithm, batch, step), wanted)
        torch.testing.assert_close(algorithm.variances, average.detach())


def test_before_the_switch_it_is_erm_and_the_average_goes_on() -> None:
    task = TASKS["regression"]
    algorithm, erm = tiny("Fishr", task, **PLAIN), tiny("ERM", task, **PLAIN)
    batch = tiny_batch(task)
    torch.testing.assert_close(network_step(algorithm, batch, 0), network_step(erm, batch, 0))
    assert (algorithm.variances > 0).any()


def test_environments_that_are_not_drawn_keep_their_variances() -> None:
    algorithm = tiny("Fishr")
    algorithm.train_step(tiny_batch(BINARY).of([3, 1]), 0)
    assert (algorithm.variances.abs().sum(1) > 0).tolist() == [False, True, False, True, False]
