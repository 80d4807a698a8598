"""TRM and Transfer, whose classifiers are to transfer, against their algorithms by autograd."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from oodbench.conformance.tiny_problems import LAST, PLAIN, TASKS, tiny_batch
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.algorithms.methods import (
    ON_EVERY_TASK,
    descend,
    gradient,
    require_equation,
    require_same_weights,
    risks_of,
    tiny,
)
from tests.helpers.results.sweeps import first

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
def test_the_objective_of_trm_is_the_transfer_risk(kind: str) -> None:
    task = TASKS[kind]
    algorithm = tiny("TRM", task, **PLAIN, **WEIGHTS)
    out = algorithm.outputs(tiny_batch(task), LAST)
    out.buffers.update(algorithm.next_buffers(out))
    wanted, heads, shares = by_hand(algorithm, task)
    torch.testing.assert_close(out.buffers["heads"], torch.stack(heads))
    torch.testing.assert_close(out.buffers["shares"], shares)
    require_equation(algorithm.objective(out), wanted, algorithm.network)


def test_before_its_start_trm_is_erm_and_its_heads_stay() -> None:
    task = Task("binary")
    algorithm, erm = tiny("TRM", task, **PLAIN, **WEIGHTS), tiny("ERM", task, **PLAIN)
    before = {name: value.clone() for name, value in algorithm.named_buffers()}
    for method in (algorithm, erm):
        method.train_step(tiny_batch(task), 0)
    require_same_weights(algorithm.network, erm.network)
    for name, value in algorithm.named_buffers():
        assert torch.equal(value, before[name])


def gap(featurizer: nn.Module, classifier: nn.Module, task: Task) -> Tensor:
    risks = risks_of(nn.Sequential(featurizer, classifier), task, tiny_batch(task))
    return risks.max() - risks.min()


@pytest.mark.parametrize("radius", [1e-3, 10.0])
@ON_EVERY_TASK
def test_two_updates_are_those_of_the_algorithm(task: Task, radius: float) -> None:
    values: dict[str, Any] = {"penalty_weight": 0.7, "ascents": 3, "ascent_lr": 0.05}
    algorithm = tiny("Transfer", task, **PLAIN, **values, radius=radius)
    network, adversary = (copy.deepcopy(m) for m in (algorithm.network, algorithm.adversary))
    for step in range(2):
        algorithm.train_step(tiny_batch(task), step)
        descend(network, risks_of(network, task, tiny_batch(task)).mean())
        descend(network.featurizer, 0.7 * gap(network.featurizer, adversary, task))
        adversary = copy.deepcopy(network.classifier)
        centre = parameters_to_vector(adversary.parameters()).detach()
        for _ in range(3):
            slope = gradient(0.7 * gap(network.featurizer, adversary, task), adversary.parameters())
            away = parameters_to_vector(adversary.parameters()).detach() + 0.05 * slope - centre
            away = away * min(1.0, radius / float(away.norm()))
            vector_to_parameters(centre + away, adversary.parameters())
    for ours, wanted in ((algorithm.network, network), (algorithm.adversary, adversary)):
        require_same_weights(ours, wanted, rtol=1e-9, atol=1e-11)


def test_an_adversary_of_a_head_that_stays_as_it_is_moves() -> None:
    """`Linear`, whose classifier is fixed: the featurizer alone is trained."""
    linear = {"name": "Linear", "hparams": {}}
    run = Run(first(algorithms=["Transfer"], network=linear, steps=5), TrainSettings())
    method: Any = run.algorithm
    start = parameters_to_vector(method.network.parameters()).clone()
    assert run.run_steps(5) is None
    assert not torch.equal(method.adversary.weight, method.network.classifier.weight)
    assert method.network.classifier.weight.eq(1).all()
    assert not torch.equal(parameters_to_vector(method.network.parameters()), start)
