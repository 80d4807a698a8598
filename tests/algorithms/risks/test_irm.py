"""ERM, IRM's penalty, and the schedule that all penalized methods share."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from oodbench.algorithms.irm import orders
from torch import Tensor, nn

from oodbench.algorithms import Batch, algorithms, first_step
from oodbench.conformance.tiny_problems import LAST, PLAIN, network_step, tiny_batch
from oodbench.hparams import distributions
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    gradient,
    require_equation,
    require_six_updates,
    risks_of,
    scale_gradient,
    squared_norm,
    tiny,
)


def by_autograd(task: Task, logits: Tensor, y: Tensor, form: str = "") -> Tensor:
    penalties = []
    for e in range(len(logits)):
        penalties.append(scale_gradient(task, logits[e], y[e]) ** 2)
        if form == "split_half":
            order = orders(LAST, *logits.shape[:2])[e]
            first, second = (scale_gradient(task, logits[e], y[e], order[i::2]) for i in (0, 1))
            penalties[-1] = first * second
        elif form == "shift":
            constant = torch.zeros((), dtype=torch.float64, requires_grad=True)
            risk = task.losses(logits[e] + constant, y[e]).mean()
            penalties[-1] += torch.autograd.grad(risk, constant, create_graph=True)[0] ** 2
    return torch.stack(penalties).mean()


@pytest.mark.parametrize("form", ["", "split_half", "shift"])
@pytest.mark.parametrize("examples", [2, 6, 7])
@ON_EVERY_TASK
def test_the_penalty_and_its_gradient_are_those_of_autograd(
    task: Task, examples: int, form: str
) -> None:
    """A shift adds the gradient of a constant added to the logits."""
    algorithm = tiny("IRM", task, **({form: True} if form else {}))
    batch = tiny_batch(task, examples=examples)
    out = algorithm.outputs(batch, LAST)
    found, wanted = algorithm.penalty(out), by_autograd(task, out.logits, batch.y, form)
    require_equation(found, wanted, algorithm.network)
    total = out.risks.mean() + 100 * wanted
    torch.testing.assert_close(algorithm.objective(out), total, rtol=1e-10, atol=0)


def test_every_step_draws_its_halves() -> None:
    first, again, other = orders(3, 4, 9), orders(3, 4, 9), orders(4, 4, 9)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first.sort(1).values, torch.arange(9).expand(4, 9))


def test_no_branch_on_the_initial_weight() -> None:
    values: dict[str, Any] = {"divide_by_weight": True, "anneal_steps": 1, "penalty_weight": 4.0}
    algorithm = tiny("IRM", **values)
    algorithm.hparams = replace(algorithm.hparams, initial_weight=torch.tensor([0.0, 1.0, 2.0]))
    assert algorithm.divisor(0).tolist() == [1, 1, 1]
    assert algorithm.divisor(1).tolist() == [4, 4, 2]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("weight", [0.5, 1e4])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_updates_are_those_of_the_papers_code(
    optimizer: str, weight: float, divide: bool, reset: bool
) -> None:
    """The code of arXiv:1907.02893, which has the L2 penalty in the loss."""
    lr, l2, anneal = (1e-3 if optimizer == "adam" or divide else 1e-7), 1e-2, 3
    values = {**PLAIN, "optimizer": optimizer, "lr": lr, "momentum": 0.9, "weight_decay": 2 * l2}
    values |= {"penalty_weight": weight, "anneal_steps": anneal}
    values |= {"divide_by_weight": divide, "reset_optimizer": reset}

    def loss(network: nn.Module, batch: Batch, step: int, factor: float) -> Tensor:
        now = 1.0 if step < anneal else weight
        logits = torch.stack([network(x) for x in batch.x])
        penalty = by_autograd(BINARY, logits, batch.y)
        total = risks_of(network, BINARY, batch).mean() + l2 * squared_norm(network)
        total = total + factor * now * penalty
        return total / now if divide and now > 1 else total

    made: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": partial(torch.optim.SGD, momentum=0.9)}
    new, anew = partial(made[optimizer], lr=lr), anneal if reset else 0
    require_six_updates(tiny("IRM", **values), loss, new, moved=1e-6, anew=anew)


def covariate_shift_cosine(protocol: str, step: int) -> float:
    """The cosine between an update's gradient in IRM's row of a protocol and that of the paper's code.

    The code of arXiv:2003.00688 at its default flags: the sum of two risks, 1e-3 times the squared norm
    of the weights, and 1e4 times the mean penalty (1 before the 100th step), divided by 1e4 from then on.
    """
    rows = {getattr(row, "name", ""): row for row in read_sweep(find_sweep(protocol)).algorithms}
    hparams: Any = getattr(rows["IRM"], "hparams", {})
    algorithm, batch = tiny("IRM", BINARY, 2, **hparams), tiny_batch(BINARY, environments=2)
    out = algorithm.outputs(batch, step)
    norm = squared_norm(algorithm.network)
    decayed = algorithm.objective(out) + algorithm.rates(step).weight_decay / 2 * norm
    weight = 1.0 if step < 100 else 1e4
    penalty = by_autograd(BINARY, out.logits, batch.y)
    theirs = out.risks.sum() + 1e-3 * norm + weight * penalty
    ours, theirs = (gradient(v, algorithm.network.parameters()) for v in (decayed, theirs))
    return float(torch.cosine_similarity(ours, theirs, dim=0))


def test_the_covariate_shift_protocols_row_follows_the_papers_code() -> None:
    for step in (0, LAST):
        assert covariate_shift_cosine("rex-2021-v2", step) == pytest.approx(1, abs=1e-12)
    assert covariate_shift_cosine("rex-2021", 0) < 0.9999  # twice the constants, until a new name


@pytest.mark.parametrize("name", ["IRM", "VREx", "MMREx", "IB_ERM", "IB_IRM"])
def test_the_switch_is_drawn_as_by_the_peer_and_may_never_come(name: str) -> None:
    """There int(10**U(0, 4)) of 5,001 steps; 7.5% of the draws are beyond the last."""
    steps, never = 5001, 0
    drawn = {
        k: d for k, d in distributions(algorithms.get(name).Hparams).items() if d and "anneal" in k
    }
    for quantile in range(1000):
        theirs = 10 ** (4 * quantile / 1000)
        never += theirs > steps
        for value in (distribution.at(quantile / 1000) for distribution in drawn.values()):
            number: Any
            for number in (value, torch.tensor(value)):  # float32, as in a vectorized run
                found = float(first_step(number, steps))
                assert found == pytest.approx(min(theirs, steps), abs=0.51)
                assert theirs <= steps or first_step(number, 500_000) == 500_000
    assert never == 75


@ON_EVERY_TASK
def test_an_update_of_erm_descends_the_mean_of_the_environments_risks(task: Task) -> None:
    algorithm, batch = tiny("ERM", task, **PLAIN), tiny_batch(task)
    network = tiny("ERM", task).network
    wanted = gradient(risks_of(network, task, batch).mean(), network.parameters())
    torch.testing.assert_close(network_step(algorithm, batch, 0), wanted)
