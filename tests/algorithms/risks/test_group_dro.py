"""GroupDRO against its algorithm, written out."""

from typing import Any

import torch

from oodbench.algorithms import Batch, algorithms
from oodbench.conformance.tiny_problems import (
    PLAIN,
    TASKS,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)

GROUP_DRO: Any = algorithms.get("GroupDRO")


def test_three_steps_are_those_of_the_paper() -> None:
    """q_e <- q_e exp(eta R_e) / S, then a step on sum_e q_e R_e with q held fixed."""
    task = TASKS["multiclass"]
    algorithm = tiny_algorithm(GROUP_DRO, tiny_problem(task), {**PLAIN, "eta": 0.7})
    twin = tiny_algorithm(GROUP_DRO, tiny_problem(task), {**PLAIN, "eta": 0.7})
    q = torch.full((5,), 0.2, dtype=torch.float64)
    for step in range(3):
        batch = tiny_batch(task, seed=step)
        risks = twin.outputs(batch, step).risks
        q = q * (0.7 * risks.detach()).exp()
        q = q / q.sum()
        gradients = torch.autograd.grad((q * risks).sum(), list(twin.parameters()))
        with torch.no_grad():
            for p, g in zip(twin.parameters(), gradients, strict=True):
                p.sub_(0.01 * g)
        loss = algorithm.update(batch, step)["loss"]
        torch.testing.assert_close(loss, (q * risks.detach()).sum())
        torch.testing.assert_close(algorithm.weights, q)
    for ours, theirs in zip(algorithm.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_environments_that_are_not_drawn_keep_their_share() -> None:
    task = TASKS["binary"]
    algorithm = tiny_algorithm(GROUP_DRO, tiny_problem(task), {"eta": 1.0})
    batch = tiny_batch(task)
    part: Batch = batch.of([3, 1])
    risks = algorithm.outputs(part, 0).risks.detach()
    algorithm.update(part, 0)
    factors = torch.ones(5, dtype=torch.float64)
    factors[[3, 1]] = risks.exp()
    torch.testing.assert_close(algorithm.weights, factors / factors.sum())
