"""CMA, HGP and Hutchinson against the authors' loops, with backward passes for every Hessian."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.algorithms import Batch
from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
from oodbench.errors import UserError
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, ON_EVERY_TASK, gradient, require_equation, tiny

WEIGHTS: Any = {"gradient_weight": 30.0, "hessian_weight": 20.0}


def products(slope: Tensor, head: list[nn.Parameter], vectors: Tensor) -> Tensor:
    """The Hessian of a risk with gradient `slope`, times each of the vectors (V, P)."""
    return torch.stack([gradient(slope @ v, head, graph=True) for v in vectors])


def aligned(risks: list[Tensor], head: list[nn.Parameter], outputs: int) -> tuple[Tensor, Tensor]:
    """The authors' CMA: gradients and Hessians divided by the number of outputs."""
    slopes = [gradient(risk, head, graph=True) for risk in risks]
    basis = torch.eye(len(slopes[0]), dtype=torch.float64)
    hessians = [products(slope, head, basis) / outputs for slope in slopes]
    slopes = [slope / outputs for slope in slopes]
    spreads = []
    for values in (slopes, hessians):
        mean = sum(values) / len(values)
        spreads.append(sum((v - mean).norm() ** 2 for v in values) / len(values))
    return spreads[0], spreads[1]


def spread(values: list[Tensor], constant: Tensor) -> Tensor:
    return torch.stack([(v - constant.detach()).pow(2).sum() for v in values]).mean()


def hessian_gradients(risks: list[Tensor], head: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """The authors' HGP: H g as the norm of g times the gradient of that norm."""
    mean = torch.stack(risks).mean()
    slopes = [gradient(risk, head, graph=True) for risk in [*risks, mean]]
    found = [slope.norm() * gradient(slope.norm(), head, graph=True) for slope in slopes]
    return spread(slopes[:-1], slopes[-1]), spread(found[:-1], found[-1])


def diagonals(
    risks: list[Tensor], head: list[nn.Parameter], signs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The authors' Hutchinson, with the signs (probes, E + 1, P), or the diagonals themselves."""
    mean = torch.stack(risks).mean()
    slopes = [gradient(risk, head, graph=True) for risk in [*risks, mean]]
    found = []
    for e, slope in enumerate(slopes):
        if signs is None:
            basis = torch.eye(len(slope), dtype=torch.float64)
            found.append(products(slope, head, basis).diagonal())
        else:
            found.append((signs[:, e] * products(slope, head, signs[:, e])).mean(0))
    return spread(slopes[:-1], slopes[-1]), spread(found[:-1], found[-1])


def penalty(name: str, algorithm: Any, network: nn.Module, batch: Batch, step: int) -> Any:
    """The mean risk, and the two distances by the authors' loop."""
    task = algorithm.problem.task
    head = list(network.classifier.parameters())  # type: ignore[union-attr]
    risks = [task.losses(network(x), y).mean() for x, y in batch.minibatches()]
    outputs = network(batch.x[0]).shape[1]
    if name == "CMA":
        found = aligned(risks, head, outputs)
    elif name == "HGP":
        found = hessian_gradients(risks, head)
    else:
        noise = algorithm.noise_at(batch, step)
        signs = None
        if noise:
            z = 2 * noise["bits"].double() - 1
            signs = torch.cat([z[..., :-1].flatten(2), z[..., -1]], 2)
        found = diagonals(risks, head, signs)
    return torch.stack(risks).mean(), *found


CASES: Any = [
    ("CMA", {}),
    ("HGP", {}),
    ("Hutchinson", {"probes": 3}),
    ("Hutchinson", {"probes": 0}),
]


@pytest.mark.parametrize(("name", "values"), CASES)
@ON_EVERY_TASK
def test_the_distances_are_those_of_the_authors_loop(
    task: Task, name: str, values: dict[str, Any]
) -> None:
    algorithm = tiny(name, task, **WEIGHTS, **values)
    batch = algorithm.prepared(tiny_batch(task), 0)
    risk, of_gradients, of_hessians = penalty(name, algorithm, algorithm.network, batch, 0)
    wanted = risk + 30 * of_gradients + 20 * of_hessians
    out = algorithm.outputs(batch, 0)
    require_equation(algorithm.objective(out), wanted, algorithm.network)
    found = (out.metrics["gradient distance"], out.metrics["Hessian distance"])
    torch.testing.assert_close(found, (of_gradients.detach(), of_hessians.detach()))


@pytest.mark.parametrize(("name", "values"), CASES)
def test_six_updates_are_those_of_the_authors_loop(name: str, values: dict[str, Any]) -> None:
    """With Adam and weight decay; the penalty moves the weights."""
    task = TASKS["multiclass"]
    plain = {**PLAIN, "optimizer": "adam", "weight_decay": 0.01, **values}
    algorithm = tiny(name, task, **plain, **WEIGHTS)
    networks = [copy.deepcopy(algorithm.network) for _ in range(2)]
    for network, factor in zip(networks, (1.0, 0.0), strict=True):
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=0.01)
        for step in range(6):
            batch = tiny_batch(task, step)
            risk, first, second = penalty(name, algorithm, network, batch, step)
            optimizer.zero_grad()
            (risk + factor * (30 * first + 20 * second)).backward()
            optimizer.step()
    for step in range(6):
        algorithm.train_step(tiny_batch(task, step), step)
    ours, theirs, erm = (
        nn.utils.parameters_to_vector(n.parameters()) for n in (algorithm.network, *networks)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    assert (theirs - erm).abs().max() > 1e-3


@pytest.mark.parametrize("examples", [2, 40])
def test_stored_hessians_and_products_of_examples_give_the_same(examples: int) -> None:
    """Two of 9 parameters in 5 environments: 40 examples store Hessians, 2 do not."""
    algorithm, batch = tiny("CMA", **WEIGHTS), tiny_batch(BINARY, examples=examples)
    risk, first, second = penalty("CMA", algorithm, algorithm.network, batch, 0)
    found = algorithm.objective(algorithm.outputs(batch, 0))
    require_equation(found, risk + 30 * first + 20 * second, algorithm.network)


def test_many_probes_estimate_the_diagonal() -> None:
    batch, found = tiny_batch(TASKS["multiclass"]), []
    for probes in (20_000, 0):
        algorithm = tiny("Hutchinson", TASKS["multiclass"], probes=probes)
        out = algorithm.outputs(algorithm.prepared(batch, 0), 0)
        algorithm.objective(out)
        found.append(out.metrics["Hessian distance"])
    torch.testing.assert_close(*found, rtol=0.05, atol=0)


def test_too_many_signs_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = tiny("Hutchinson")
    assert algorithm.noise_at(tiny_batch(BINARY), 0)["bits"].shape == (300, 6, 1, 9)
    monkeypatch.setattr("oodbench.algorithms.cma.PROBES", 300 * 6 * 9 - 1)
    assert algorithm.noise_at(tiny_batch(BINARY), 0) == {}


def test_before_the_switch_there_is_no_penalty() -> None:
    algorithm, batch = tiny("CMA", anneal_steps=3), tiny_batch(BINARY)
    out = algorithm.outputs(batch, 2)
    assert algorithm.objective(out) == out.risks.mean()
    assert algorithm.objective(algorithm.outputs(batch, 3)) > out.risks.mean()


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^'hessian_weight' in .* must be at least 0\.0, not -1\.0"
    ):
        tiny("HGP", hessian_weight=-1.0)
