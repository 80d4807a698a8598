"""Fishr, IGA, CMA, HGP and Hutchinson against backward passes of each example and environment."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Problem, algorithms
from oodbench.conformance.tiny_problems import LAST, PLAIN, TASKS, network_step, tiny_batch
from oodbench.networks.base import build
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    gradient,
    require_equation,
    require_six_updates,
    risks_of,
    tiny,
)


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
@pytest.mark.parametrize("ema", [0.0, 0.95])
def test_the_penalty_grows_with_the_average_and_its_gradient_is_of_this_step(
    task: Task, ema: float
) -> None:
    """a <- ema a + (1 - ema) v from 0 on, and a / (1 - ema) stands for v."""
    values = {**PLAIN, "lr": 1e-6, "penalty_weight": 2.0, "anneal_steps": 0, "ema": ema}
    algorithm = tiny("Fishr", task, **values)
    average = torch.zeros_like(algorithm.variances)
    for step in range(3):
        batch = tiny_batch(task, seed=step)
        average = ema * average.detach() + (1 - ema) * variances(algorithm, batch)
        total = algorithm.outputs(batch, 0).risks.mean() + 2 * distance(average / (1 - ema))
        wanted = gradient(total, algorithm.network.parameters())
        torch.testing.assert_close(network_step(algorithm, batch, step), wanted)
        torch.testing.assert_close(algorithm.variances, average.detach())


def test_before_the_switch_it_is_erm_and_the_average_goes_on() -> None:
    task = TASKS["regression"]
    algorithm, erm = tiny("Fishr", task, **PLAIN), tiny("ERM", task, **PLAIN)
    batch = tiny_batch(task)
    torch.testing.assert_close(network_step(algorithm, batch, 0), network_step(erm, batch, 0))
    assert (algorithm.variances > 0).any()


IGA: Any = algorithms.get("IGA")


@ON_EVERY_TASK
def test_a_step_is_that_of_the_equation(task: Task) -> None:
    """R + lambda sum_e |g_e - mean g|^2, with the mean's gradient in the graph."""
    algorithm = tiny("IGA", task, **{**PLAIN, "penalty_weight": 7.0})
    batch, parameters = tiny_batch(task), list(algorithm.network.parameters())
    risks = algorithm.outputs(batch, 0).risks
    mean, *each = (gradient(value, parameters, graph=True) for value in (risks.mean(), *risks))
    total = risks.mean() + 7 * torch.stack([((g - mean) ** 2).sum() for g in each]).sum()
    wanted = gradient(total, parameters)
    torch.testing.assert_close(algorithm.objective(algorithm.outputs(batch, 0)), total)
    torch.testing.assert_close(network_step(algorithm, batch, 0), wanted)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "frozen batch": lambda: nn.BatchNorm2d(4).eval(),
    "layer": lambda: nn.LayerNorm([4, 3, 3]),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
}


@pytest.mark.parametrize("norm", NORMS)
def test_the_penalty_has_its_gradient_below_normalisation(norm: str) -> None:
    """Against separate passes of each environment, in which the risks are taken, too."""
    torch.manual_seed(0)
    network = build("ConvNet", {"width": 4, "depth": 1}, (2, 5, 5), 2, 0).double()
    layers = [nn.Conv2d(2, 4, 3), NORMS[norm](), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network.featurizer = nn.Sequential(*layers).double()
    parameters = list(network.parameters())
    nn.utils.vector_to_parameters(
        torch.randn(sum(p.numel() for p in parameters)).double(), parameters
    )
    task = Task("multiclass", 2)
    algorithm = IGA(network, Problem((2, 5, 5), task, ("a", "b", "c"), 10), IGA.Hparams())
    x, y = torch.randn(3, 6, 2, 5, 5).double(), torch.randint(2, (3, 6))
    risks = torch.stack([task.losses(network(x[e]), y[e]).mean() for e in range(3)])
    out = replace(algorithm.outputs(Batch(x, y), 0), risks=risks)
    before = {name: b.clone() for name, b in network.named_buffers()}
    each = torch.stack([gradient(risk, parameters, graph=True) for risk in risks])
    total = risks.mean() + 1000 * (each - each.mean(0)).square().sum()
    found = algorithm.objective(out)
    torch.testing.assert_close(found, total)
    torch.testing.assert_close(gradient(found, parameters), gradient(total, parameters))
    for name, statistic in network.named_buffers():  # which the pass before has counted
        assert torch.equal(statistic, before[name])


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


def penalty(
    name: str, network: Any, task: Task, batch: Batch, noise: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean risk, and the two distances by the authors' loop."""
    head = list(network.classifier.parameters())
    risks = list(risks_of(network, task, batch))
    if name == "CMA":
        found = aligned(risks, head, network(batch.x[0]).shape[1])
    elif name == "HGP":
        found = hessian_gradients(risks, head)
    else:
        signs = None
        if noise:
            z = 2 * noise["bits"].double() - 1
            signs = torch.cat([z[..., :-1].flatten(2), z[..., -1]], 2)
        found = diagonals(risks, head, signs)
    return torch.stack(risks).mean(), *found


CASES: Any = [("CMA", {}), ("HGP", {}), *(("Hutchinson", {"probes": p}) for p in (3, 0))]


@pytest.mark.parametrize(
    ("name", "values", "examples"),
    [*((*case, 6) for case in CASES), ("CMA", {}, 2), ("CMA", {}, 40)],
)
@ON_EVERY_TASK
def test_the_distances_are_those_of_the_authors_loop(
    task: Task, name: str, values: dict[str, Any], examples: int
) -> None:
    """With 40 examples CMA stores Hessians, with 2 it does not."""
    algorithm = tiny(name, task, **WEIGHTS, **values)
    batch = algorithm.prepared(tiny_batch(task, examples=examples), 0)
    risk, of_gradients, of_hessians = penalty(name, algorithm.network, task, batch, batch.noise)
    wanted = risk + 30 * of_gradients + 20 * of_hessians
    out = algorithm.outputs(batch, 0)
    require_equation(algorithm.objective(out), wanted, algorithm.network)
    found = (out.metrics["gradient distance"], out.metrics["Hessian distance"])
    torch.testing.assert_close(found, (of_gradients.detach(), of_hessians.detach()))


@pytest.mark.parametrize(("name", "values"), CASES)
def test_six_updates_are_those_of_the_authors_loop(name: str, values: dict[str, Any]) -> None:
    """With Adam and weight decay; the penalty moves the weights."""
    plain = {**PLAIN, "optimizer": "adam", "weight_decay": 0.01, **values}
    algorithm = tiny(name, **plain, **WEIGHTS)

    def loss(network: nn.Module, batch: Batch, step: int, factor: float) -> Tensor:
        noise = algorithm.noise_at(batch, step)
        risk, first, second = penalty(name, network, BINARY, batch, noise)
        return risk + factor * (30 * first + 20 * second)

    require_six_updates(algorithm, loss, partial(torch.optim.Adam, lr=0.01, weight_decay=0.01))


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
