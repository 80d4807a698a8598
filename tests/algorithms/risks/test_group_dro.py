"""GroupDRO against its algorithm, written out."""

import torch

from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
from tests.helpers.algorithms.methods import BINARY, descend, require_same_weights, tiny


def test_three_steps_are_those_of_the_paper() -> None:
    """q_e <- q_e exp(eta R_e) / S, then a step on sum_e q_e R_e with q held fixed."""
    task = TASKS["multiclass"]
    algorithm, twin = (tiny("GroupDRO", task, **{**PLAIN, "eta": 0.7}) for _ in range(2))
    q = torch.full((5,), 0.2, dtype=torch.float64)
    for step in range(3):
        batch = tiny_batch(task, seed=step)
        risks = twin.outputs(batch, step).risks
        q = q * (0.7 * risks.detach()).exp()
        q = q / q.sum()
        descend(twin, (q * risks).sum())
        loss = algorithm.train_step(batch, step)["loss"]
        torch.testing.assert_close(loss, (q * risks.detach()).sum())
        torch.testing.assert_close(algorithm.weights, q)
    require_same_weights(algorithm, twin)


def test_environments_that_are_not_drawn_keep_their_share() -> None:
    algorithm, part = tiny("GroupDRO", eta=1.0), tiny_batch(BINARY).of([3, 1])
    risks = algorithm.outputs(part, 0).risks.detach()
    algorithm.train_step(part, 0)
    factors = torch.ones(5, dtype=torch.float64)
    factors[[3, 1]] = risks.exp()
    torch.testing.assert_close(algorithm.weights, factors / factors.sum())


def test_groups_are_pairs_of_target_and_attribute_wherever_they_are() -> None:
    """A group that is not in the batch has the risk 0, and its share shrinks with the sum alone."""
    task = TASKS["multiclass"]
    algorithm = tiny("GroupDRO", task, **{**PLAIN, "eta": 0.7, "over": "groups"})
    q = torch.full((6,), 1 / 6, dtype=torch.float64)
    for step in range(3):
        batch = tiny_batch(task, seed=step, environments=2, examples=4)
        assert batch.attributes is not None
        losses = algorithm.outputs(batch, step).losses.detach()
        risks = torch.zeros(6, dtype=torch.float64)
        for g in range(6):
            here = (batch.y == g // 2) & (batch.attributes == g % 2)
            risks[g] = losses[here].mean() if here.any() else 0.0
        assert step != 0 or (risks == 0).any()
        q = q * (0.7 * risks).exp()
        q = q / q.sum()
        loss = algorithm.train_step(batch, step)["loss"]
        torch.testing.assert_close(loss, (q * risks).sum())
        torch.testing.assert_close(algorithm.weights, q)


def test_groups_of_real_targets_are_attributes() -> None:
    algorithm = tiny("GroupDRO", TASKS["regression"], over="groups")
    batch = tiny_batch(TASKS["regression"])
    out = algorithm.outputs(batch, 0)
    assert batch.attributes is not None
    for g in range(2):
        wanted = out.losses[batch.attributes == g].mean()
        torch.testing.assert_close(algorithm.group_risks(out)[g], wanted)
