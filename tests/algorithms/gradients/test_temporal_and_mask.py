from dataclasses import replace
from typing import Any

import pytest
import torch
from oodbench.algorithms.temporal_and_mask import TemporalANDMask
from torch import Tensor, nn

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem

METHOD: Any = algorithms.get("TemporalANDMask")
GRADIENTS = torch.tensor([[1.0, -2.0, 0.0], [0.3, 0.1, -0.7], [1.0, -1.0, 0.2], [2.0, -0.5, 0.0]])
GRADIENTS = GRADIENTS.double()


def steps(**values: Any) -> Tensor:
    """The parameters after every update with GRADIENTS, (4, 3)."""
    parameter = nn.Parameter(torch.tensor([1.0, -1.0, 2.0]).double())
    optimizer = TemporalANDMask([parameter], **values)
    found = []
    for gradient in GRADIENTS:
        parameter.grad = gradient.clone()
        optimizer.step()
        found.append(parameter.detach().clone())
    return torch.stack(found)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("decay", ["after", "coupled"])
@pytest.mark.parametrize("tau", [0.0, 0.3, 0.9])
def test_it_is_algorithm_1(tau: float, decay: str, corrected: bool) -> None:
    b1, b2, b3, lr, eps, wd = 0.5, 0.9, 0.7, 0.1, 1e-3, 0.2
    found = steps(
        betas=(b1, b2, b3), lr=lr, eps=eps, weight_decay=wd, tau=tau, decay=decay,
        bias_correction=corrected,
    )  # fmt: skip
    theta = [1.0, -1.0, 2.0]
    m, v, a = [0.0] * 3, [0.0] * 3, [0.0] * 3
    for t, gradient in enumerate(GRADIENTS.tolist(), 1):
        for i, loss_gradient in enumerate(gradient):
            g = loss_gradient + (wd * theta[i] if decay == "coupled" else 0.0)
            sign = (loss_gradient > 0) - (loss_gradient < 0)
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g * g
            a[i] = b3 * a[i] + (1 - b3) * sign
            c1, c2, c3 = (1 - b**t if corrected else 1.0 for b in (b1, b2, b3))
            if abs(a[i] / c3) >= tau:
                theta[i] -= lr * (m[i] / c1) / (v[i] / c2 + eps) ** 0.5
            if decay == "after":
                theta[i] -= lr * wd * theta[i]
        torch.testing.assert_close(found[t - 1], torch.tensor(theta).double())


@pytest.mark.parametrize(
    ("beta3", "tau", "masked"),
    [(0.79, 0.36, 1), (0.86, 0.40, 3), (0.84, 0.41, 3), (0.72, 0.47, 1), (0.65, 0.47, 1)],
)
def test_as_printed_the_first_steps_are_masked(beta3: float, tau: float, masked: int) -> None:
    """|a| after k equal signs is 1 - b3^k: the five best runs of table 3 wait one to three steps."""
    first = steps(betas=(0.2, 0.999, beta3), tau=tau, weight_decay=0.0)[:, 0]
    still = [float(value) == 1.0 for value in first]
    assert still == [k <= masked for k in range(1, 5)]
    corrected = steps(betas=(0.2, 0.999, beta3), tau=1.0, weight_decay=0.0, bias_correction=True)
    assert (corrected[:, 0] != 1).all()


def test_every_environment_has_its_turn_in_every_round() -> None:
    algorithm: Any = tiny_algorithm(METHOD, tiny_problem(TASKS["binary"]))
    rounds = [
        tuple(e for i in range(5) for e in algorithm.environments_at(5 * r + i)) for r in range(30)
    ]
    assert all(sorted(turns) == [0, 1, 2, 3, 4] for turns in rounds)
    assert len(set(rounds)) > 20
    other = replace(algorithm.problem, seed=1)
    of_another_trial: Any = tiny_algorithm(METHOD, other)
    turns = [of_another_trial.environments_at(step) for step in range(50)]
    assert turns != [algorithm.environments_at(step) for step in range(50)]


def test_a_step_sees_one_environment() -> None:
    task = TASKS["regression"]
    batch, other = tiny_batch(task, 0), tiny_batch(task, 1)
    first: Any = tiny_algorithm(METHOD, tiny_problem(task))
    (e,) = first.environments_at(7)
    other.x[e], other.y[e] = batch.x[e], batch.y[e]
    second = tiny_algorithm(METHOD, tiny_problem(task))
    losses = [float(a.train_step(b, 7)["loss"]) for a, b in ((first, batch), (second, other))]
    network = tiny_algorithm(METHOD, tiny_problem(task)).network
    wanted = task.losses(network(batch.x[e]), batch.y[e]).mean().item()
    assert losses == pytest.approx([wanted, wanted])
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)
