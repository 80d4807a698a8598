"""JTT, LfF and EIIL, which learn from mistakes, against their equations."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
from tests.helpers.algorithms.methods import (
    BINARY,
    descend,
    half,
    require_equation,
    require_same_weights,
    scale_gradient,
    tiny,
)

TASK = TASKS["multiclass"]


def test_both_stages_of_jtt_are_those_of_the_paper() -> None:
    values = {**PLAIN, "lr": 0.1}
    staged = {**values, "first_stage": 0.5, "upweight": 7.0}
    algorithm, twin = tiny("JTT", TASK, 5, {"steps": 6}, **staged), tiny("ERM", TASK, **values)
    start, wrong = copy.deepcopy(twin.network), torch.zeros(5, 6, dtype=torch.float64)
    for step in range(3):
        batch: Any = half(tiny_batch(TASK), step)
        predicted = twin.network(batch.x.flatten(0, 1)).argmax(-1).view(5, 3)
        wrong.scatter_(1, batch.index, (predicted != batch.y).double())
        twin.train_step(batch, step)
        algorithm.train_step(batch, step)
        require_same_weights(algorithm.network, twin.network, rtol=0, atol=0)
    assert 0 < wrong.sum() < 30 and torch.equal(algorithm.get_buffer("wrong"), wrong)
    twin.network.load_state_dict(start.state_dict())
    for step in range(3, 6):
        batch = half(tiny_batch(TASK), step)
        losses = twin.outputs(batch, step).losses
        total = torch.zeros((), dtype=torch.float64)
        for e in range(5):
            repeated = 6 + 6 * wrong[e].sum()  # the size of the set with the wrong ones 7 times
            for k, i in enumerate(batch.index[e].tolist()):
                total += (7 if wrong[e, i] else 1) * losses[e, k] / (repeated / 6) / 3 / 5
        descend(twin.network, total, 0.1)
        torch.testing.assert_close(algorithm.train_step(batch, step)["loss"], total.detach())
        require_same_weights(algorithm.network, twin.network)
    assert torch.equal(algorithm.get_buffer("wrong"), wrong)


E, Q, EMA = 5, 0.6, 0.7


def log_shares(network: Any, x: Tensor) -> Tensor:
    """The logarithms of the probabilities of the classes, (C,)."""
    logits = network(x.unsqueeze(0)).squeeze(0)
    logits = torch.cat([torch.zeros_like(logits), logits]) if len(logits) == 1 else logits
    result: Tensor = logits.log_softmax(0)
    return result


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_both_networks_of_lff_follow_the_equations(kind: str) -> None:
    task = TASKS[kind]
    batch, values = tiny_batch(task), {**PLAIN, "lr": 0.5, "q": Q, "ema": EMA}
    algorithm = tiny("LfF", task, **values)
    debiased = copy.deepcopy(algorithm.network)
    biased = copy.deepcopy(algorithm.biased_network)
    means: dict[tuple[int, int], tuple[float, float, int]] = {}
    for step in range(5):
        now: Any = half(batch, step)
        terms: list[tuple[Tensor, Tensor, tuple[int, int]]] = []
        for e in range(E):
            for x, y, i in zip(now.x[e], now.y[e].long().tolist(), now.index[e], strict=True):
                both = [-log_shares(network, x)[y] for network in (biased, debiased)]
                kept = EMA if (e, int(i)) in means else 0.0
                old = means.get((e, int(i)), (0.0, 0.0, y))
                b, d = (
                    kept * old[k] + (1 - kept) * float(each.detach()) for k, each in enumerate(both)
                )
                means[e, int(i)] = b, d, y
                terms.append((both[0], both[1], (e, int(i))))
        total = torch.zeros((), dtype=torch.float64)
        for of_biased, of_debiased, place in terms:
            alike = [value for value in means.values() if value[2] == means[place][2]]
            b, d = (means[place][k] / max(value[k] for value in alike) for k in (0, 1))
            easy = (1 - (-of_biased).exp() ** Q) / Q
            total = total + (easy + b / (b + d + 1e-8) * of_debiased) / len(terms)
        parameters = [*biased.parameters(), *debiased.parameters()]
        holder = torch.nn.ParameterList(parameters)
        torch.testing.assert_close(algorithm.train_step(now, step)["loss"], total.detach())
        descend(holder, total, 0.5)
        require_same_weights(algorithm.network, debiased)
        require_same_weights(algorithm.biased_network, biased)


def made(**values: object) -> Any:
    values = {"first_stage": 0.5, "anneal_steps": 0.4, "penalty_weight": 30.0, **values}
    return tiny("EIIL", BINARY, 2, {"steps": 100}, **values)


def test_no_other_two_environments_have_a_larger_penalty() -> None:
    algorithm, batch = made(), tiny_batch(BINARY, environments=2)
    split = algorithm.next_buffers(algorithm.outputs(batch, 10))["wrong"].flatten()
    z = algorithm.network(batch.x.flatten(0, 1)).flatten().detach()
    g = (z.sigmoid() - batch.y.flatten()) * z  # d loss(s z) / d s at s = 1

    def penalty(q: Tensor) -> Any:
        return (q @ g / 12) ** 2 + ((1 - q) @ g / 12) ** 2

    every = [penalty(torch.tensor(q).double()) for q in itertools.product((0, 1), repeat=12)]
    torch.testing.assert_close(penalty(split), max(every))
    assert 0 < split.sum() < 12


@pytest.mark.parametrize(("step", "weight"), [(50, 1.0), (69, 1.0), (70, 30.0), (99, 30.0)])
def test_the_second_stage_of_eiil_is_irm_on_the_environments_that_were_found(
    step: int, weight: float
) -> None:
    algorithm, batch = made(weight_decay=0.6), tiny_batch(BINARY, environments=2)
    assert algorithm.rates(step).weight_decay == pytest.approx(0.6 / weight)
    found = algorithm.next_buffers(algorithm.outputs(batch, 10))
    algorithm.load_state_dict(found, strict=False)
    with torch.no_grad():
        for p in algorithm.network.parameters():
            p.add_(0.05)
    out = algorithm.outputs(batch, step)
    out.buffers.update(algorithm.next_buffers(out))
    assert torch.equal(out.buffers["wrong"], found["wrong"])
    terms = []
    for member in (found["wrong"] > 0, found["wrong"] == 0):
        slope = scale_gradient(out.task, out.logits[member], batch.y[member])
        terms.append(out.losses[member].mean() + weight * slope**2)
    wanted = (terms[0] + terms[1]) / 2 / max(1.0, weight)
    require_equation(algorithm.minimised(out), wanted, algorithm.network)


def test_the_first_stage_of_eiil_is_erm() -> None:
    algorithm = made(weight_decay=0.6)
    assert algorithm.rates(49).weight_decay == pytest.approx(0.6)
    out = algorithm.outputs(tiny_batch(BINARY, environments=2), 49)
    out.buffers.update(algorithm.next_buffers(out))
    require_equation(algorithm.minimised(out), out.risks.mean(), algorithm.network)
