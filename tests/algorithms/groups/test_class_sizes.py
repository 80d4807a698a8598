"""Losses that know how large the classes or groups are, against loops over the examples."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Outputs, algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.algorithms.methods import require_equation, tiny
from tests.helpers.results.sweeps import DIGITS, first

COUNTS = {"binary": (60, 4, 9, 27), "multiclass": (40, 3, 11, 7, 0, 39)}
"""The sizes of the groups, two for each class."""


def made(name: str, kind: str, **values: Any) -> tuple[Any, Outputs]:
    """A method where groups have the sizes COUNTS, and its outputs on a batch."""
    counts = {"counts": (COUNTS[kind],) * 5}
    algorithm = tiny(name, TASKS[kind], problem=counts, **values)
    return algorithm, algorithm.outputs(tiny_batch(TASKS[kind]), 3)


def each(out: Any) -> list[tuple[Tensor, int, int, Tensor]]:
    """Logits of all classes, class, group and loss of every example."""
    logits = out.logits.flatten(0, 1)
    if out.task.kind == "binary":
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    labels = out.targets.flatten().long().tolist()
    groups = [2 * y + a for y, a in zip(labels, out.batch.attributes.flatten(), strict=True)]
    return list(zip(logits, labels, map(int, groups), out.losses.flatten(), strict=True))


def sizes(kind: str, over: str) -> list[int]:
    groups = COUNTS[kind]
    classes = [a + b for a, b in zip(groups[::2], groups[1::2], strict=True)]
    return list(groups) if over == "groups" else classes


BETA = 1 - 1 / 500
WEIGHTS: dict[str, tuple[Callable[[int], float], dict[str, float]]] = {
    "ReWeight": (lambda n: 1 / n, {}),
    "SqrtReWeight": (lambda n: n**-0.5, {}),
    "CBLoss": (lambda n: (1 - BETA) / (1 - BETA**n), {"volume": 500.0}),
}


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("over", ["classes", "groups"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_an_example_counts_by_the_size_of_its_class_or_group(
    name: str, over: str, kind: str
) -> None:
    weight, values = WEIGHTS[name]
    algorithm, out = made(name, kind, over=over, **values)
    raw = [weight(n) if n else 0.0 for n in sizes(kind, over)]
    wanted = torch.zeros((), dtype=torch.float64)
    for _, label, group, loss in each(out):
        of_example = raw[group if over == "groups" else label] / (sum(raw) / len(raw))
        wanted = wanted + of_example * loss / 30
    algorithm.counts = torch.tensor(sizes(kind, over), dtype=torch.float64)  # not of float32
    require_equation(algorithm.minimised(out), wanted, algorithm.network)


def test_environments_count_alike_in_the_sizes_of_classes() -> None:
    algorithm = tiny("ReWeight", problem={"counts": ((6, 0, 1, 1), (10, 10, 10, 10))})
    shares = (6 / 8 + 1 / 2) / 2, (2 / 8 + 1 / 2) / 2
    assert algorithm.counts.tolist() == pytest.approx([48 * share for share in shares])


def test_a_rare_class_keeps_its_digits_in_float32() -> None:
    problem = replace(tiny_problem(TASKS["binary"]), counts=((100_000, 0, 3, 0),))
    algorithm: Any = tiny_algorithm(
        algorithms.get("CBLoss"), problem, {"volume": 1e5}, torch.float32
    )
    beta = 1 - 1e-5
    wanted = [1e-5 / (1 - beta**100_000), 1e-5 / -math.expm1(3 * math.log1p(-1e-5))]
    weights = algorithm.group_weights() * 1e-5
    torch.testing.assert_close(weights, torch.tensor(wanted), rtol=1e-6, atol=0)


def focal(logits: Tensor, label: int, loss: Tensor, sizes: list[int]) -> Tensor:
    return (1 - logits.softmax(0)[label]) ** 0.7 * loss


def ldam(logits: Tensor, label: int, loss: Tensor, sizes: list[int]) -> Tensor:
    margin = 0.4 * (min(sizes) / sizes[label]) ** 0.25
    rivals: list[Tensor] = [3 * (z - margin * (c == label)) for c, z in enumerate(logits)]
    return torch.stack(rivals).logsumexp(0) - rivals[label]


def balanced(logits: Tensor, label: int, loss: Tensor, sizes: list[int]) -> Tensor:
    terms: list[Tensor] = [n * z.exp() for n, z in zip(sizes, logits, strict=True)]
    return -(terms[label] / torch.stack(terms).sum()).log()


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize(
    ("name", "equation", "values"),
    [
        ("Focal", focal, {"gamma": 0.7}),
        ("LDAM", ldam, {"max_margin": 0.4, "scale": 3.0}),
        ("BSoftmax", balanced, {}),
    ],
)
def test_a_loss_of_classes_is_that_of_its_equation(
    name: str, equation: Callable[..., Tensor], values: dict[str, float], kind: str
) -> None:
    algorithm, out = made(name, kind, **values)
    of_classes = sizes(kind, "classes")
    terms = [equation(z, y, loss, of_classes) for z, y, _, loss in each(out)]
    if hasattr(algorithm, "counts"):
        algorithm.counts = algorithm.counts.double()
    require_equation(algorithm.minimised(out), torch.stack(terms).mean(), algorithm.network)


def test_the_focal_loss_of_a_certain_example_has_a_gradient() -> None:
    algorithm, out = made("Focal", "binary", gamma=0.5)
    losses = torch.tensor([0.0, 1e-12, 1.0], requires_grad=True)
    algorithm.objective(replace(out, losses=losses)).backward()
    assert losses.grad is not None and losses.grad.isfinite().all()


@pytest.mark.parametrize(("share", "whole", "part"), [(0.25, 7, 0.5), (0.01, 0, 0.3), (1.0, 30, 0)])
def test_cvar_over_examples_is_the_mean_of_the_largest_losses(
    share: float, whole: int, part: float
) -> None:
    algorithm, out = made("CVaRDRO", "multiclass", share=share)
    losses = list(out.losses.flatten().sort(descending=True).values)
    wanted = sum(losses[:whole], torch.zeros((), dtype=torch.float64)) / (30 * share)
    if part:
        wanted = wanted + part * losses[whole] / (30 * share)
    require_equation(algorithm.minimised(out), wanted, algorithm.network)


def test_a_run_counts_what_it_trains_on() -> None:
    run = Run(first(algorithms=["ReWeight"], datasets=[DIGITS]), TrainSettings())
    for name, counts in zip(run.names, run.problem.counts, strict=True):
        environment: Any = run.data.environments[name]
        index = run.data.splits[name]["in"]
        pairs = zip(environment.y[index].long(), environment.attributes[index], strict=True)
        groups = [2 * int(y) + int(a) for y, a in pairs]
        assert counts == tuple(groups.count(g) for g in range(len(counts)))
