"""LfF against its equations, an example at a time."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
from tests.helpers.algorithms.methods import descend, half, require_same_weights, tiny

E, N, Q, EMA = 5, 6, 0.6, 0.7


def log_shares(network: Any, x: Tensor) -> Tensor:
    """The logarithms of the probabilities of the classes, (C,)."""
    logits = network(x.unsqueeze(0)).squeeze(0)
    logits = torch.cat([torch.zeros_like(logits), logits]) if len(logits) == 1 else logits
    result: Tensor = logits.log_softmax(0)
    return result


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_both_networks_follow_the_equations(kind: str) -> None:
    task = TASKS[kind]
    batch, values = tiny_batch(task), {**PLAIN, "lr": 0.5, "q": Q, "ema": EMA}
    algorithm = tiny("LfF", task, **values)
    debiased = copy.deepcopy(algorithm.network)
    biased = copy.deepcopy(algorithm.biased_network)
    means: dict[tuple[int, int], tuple[float, float, int]] = {}
    for step in range(5):
        now = half(batch, step)
        assert now.index is not None
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
