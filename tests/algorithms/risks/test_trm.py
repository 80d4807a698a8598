"""TRM beside its equations, with every head, gradient and Hessian by autograd on its own."""

from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.conformance.tiny_problems import LAST, PLAIN, TASKS, tiny_batch
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import require_equation, require_same_weights, tiny

WEIGHTS: dict[str, Any] = {"hessian_weight": 0.2, "eta": 0.3, "anneal_steps": 0.5}


def by_hand(method: Any, task: Task) -> tuple[Tensor, list[Tensor], Tensor]:
    """The objective, the fitted heads and the next shares."""
    batch = tiny_batch(task)
    features = method.network.featurizer(batch.x.flatten(0, 1)).view(5, 6, -1)
    logits = method.network.classifier(features)
    total = task.losses(logits, batch.y).mean()
    shares = method.shares / method.shares.sum(1, keepdim=True)
    following, heads = shares.clone(), []
    for q in range(5):
        head = method.heads[q].clone().requires_grad_()
        bias = method.biases[q].clone().requires_grad_()

        def risk(e: int, phi: Tensor, head: Tensor = head, bias: Tensor = bias) -> Tensor:
            return task.losses(phi[e] @ head.T + bias, batch.y[e]).mean()

        for _ in range(30):
            slopes = torch.autograd.grad(risk(q, features.detach()), (head, bias))
            with torch.no_grad():
                head -= 0.1 * slopes[0]
                bias -= 0.1 * slopes[1]
        heads.append(head.detach())
        others = [shares[q, p] * risk(p, features) for p in range(5) if p != q]
        (v,) = torch.autograd.grad(sum(others, torch.zeros(())), head, retain_graph=True)
        (own,) = torch.autograd.grad(risk(q, features), head, create_graph=True)
        series, term = v.clone(), v
        for _ in range(10):
            (slope,) = torch.autograd.grad(risk(q, features.detach()), head, create_graph=True)
            term = term - torch.autograd.grad((slope * term).sum(), head)[0]
            series = series + term
            if series.abs().max() > 10:
                break
        total = total + (sum(others, torch.zeros(())) - 0.2 * (series * own).sum()) / 5
        for p in range(5):
            if p != q:
                following[q, p] *= (0.3 * shares[q, p] * risk(p, features).detach()).exp()
    return total, heads, following


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel", "distribution"])
def test_the_objective_is_the_transfer_risk(kind: str) -> None:
    task = TASKS[kind]
    algorithm = tiny("TRM", task, **PLAIN, **WEIGHTS)
    out = algorithm.outputs(tiny_batch(task), LAST)
    out.buffers.update(algorithm.next_buffers(out))
    wanted, heads, shares = by_hand(algorithm, task)
    torch.testing.assert_close(out.buffers["heads"], torch.stack(heads))
    torch.testing.assert_close(out.buffers["shares"], shares)
    require_equation(algorithm.objective(out), wanted, algorithm.network)


def test_before_its_start_it_is_erm_and_its_heads_stay() -> None:
    task = Task("binary")
    algorithm, erm = tiny("TRM", task, **PLAIN, **WEIGHTS), tiny("ERM", task, **PLAIN)
    before = {name: value.clone() for name, value in algorithm.named_buffers()}
    for method in (algorithm, erm):
        method.train_step(tiny_batch(task), 0)
    require_same_weights(algorithm.network, erm.network)
    for name, value in algorithm.named_buffers():
        assert torch.equal(value, before[name])
