"""Methods on tiny problems, and comparisons with their equations written out."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Algorithm, Batch, Outputs, Problem, algorithms
from oodbench.conformance.tiny_problems import LAST, TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.networks.base import build
from oodbench.tasks import Task

OURS = [n for n in algorithms if algorithms.get(n).__module__.startswith("oodbench.algorithms.")]
"""The project's methods, without those that tests register."""
OF_EACH_KIND = {algorithms.get(name).changes: name for name in reversed(OURS)}.values()
"""One of them of each kind of change."""
BINARY = TASKS["binary"]
ON_EVERY_TASK = pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))


def tiny(
    name: str,
    task: Task = BINARY,
    environments: int = 5,
    problem: Any = MappingProxyType({}),
    **values: Any,
) -> Any:
    """A method at some hyperparameters on a tiny problem, of which `problem` changes some facts."""
    usual = tiny_problem(task, tuple(f"e{i}" for i in range(environments)))
    return tiny_algorithm(algorithms.get(name), replace(usual, **problem), values)


def fitted(
    name: str, x: Tensor, y: Tensor, task: Task, network: str = "Linear", **values: Any
) -> Any:
    """A method of vectors after one update on inputs (E, B, D) and their targets."""
    cls: Any = algorithms.get(name)
    problem = Problem((x.shape[2],), task, tuple(map(str, range(len(x)))), 1)
    built = build(network, {}, problem.input_shape, task.num_outputs, 0)
    algorithm = cls(built, problem, cls.Hparams(**values))
    algorithm.train_step(Batch(x, y), 0)
    return algorithm


def half(batch: Batch, step: int) -> Batch:
    """Three of the six examples of each environment, others at every other step."""
    part = slice(3) if step % 2 else slice(3, 6)
    assert batch.index is not None
    return Batch(batch.x[:, part], batch.y[:, part], index=batch.index[:, part])


def objective_of(name: str, risks: Tensor, step: int = LAST, **values: Any) -> Tensor:
    """The objective of a method where only the risks (E,) matter."""
    none = torch.empty(0)
    out = Outputs(none, none, none, none, risks, step, BINARY, Batch(none, none))
    value: Tensor = tiny(name, environments=len(risks), **values).objective(out)
    return value


def gradient(value: Tensor, parameters: Iterable[Tensor], graph: bool = False) -> Tensor:
    """The gradient of a scalar by parameters, (P,), zero where it does not depend on them."""
    options: Any = {"retain_graph": True, "create_graph": graph}
    options |= {"allow_unused": True, "materialize_grads": True}
    gradients = torch.autograd.grad(value, list(parameters), **options)
    return torch.cat([g.flatten() for g in gradients])


def scale_gradient(
    task: Task, logits: Tensor, y: Tensor, members: Tensor | slice = slice(None), at: float = 1.0
) -> Tensor:
    """d/dw R(w * logits) at w of some of an environment's examples, by autograd."""
    scale = torch.tensor(at, dtype=logits.dtype, requires_grad=True)
    risk = task.losses(scale * logits, y)[members].mean()
    return torch.autograd.grad(risk, scale, create_graph=True)[0]


def gradients_of_step(algorithm: Algorithm, batch: Batch, step: int) -> dict[str, Tensor]:
    """Do a step; the gradients that the optimizer is given, by the network's parameters."""
    found: dict[str, Tensor] = {}

    def keep(*given: object) -> None:
        named = algorithm.network.named_parameters()
        found.update((name, p.grad) for name, p in named if p.grad is not None)

    algorithm.optimizers["main"].register_step_pre_hook(keep)
    algorithm.train_step(batch, step)
    return found


def require_equation(found: Tensor, wanted: Tensor, module: nn.Module) -> None:
    """A scalar and its gradient by a module's parameters are those of the equation."""
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    ours, theirs = (gradient(value, module.parameters()) for value in (found, wanted))
    assert theirs.any()
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)


def require_same_weights(one: nn.Module, other: nn.Module, **tolerance: Any) -> None:
    """Two modules have the same parameters to round-off, or to `rtol` and `atol`."""
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


def risks_of(network: nn.Module, task: Task, batch: Batch) -> Tensor:
    """The risk of each environment of a batch, (E,), by a pass over its examples."""
    risks = [task.losses(network(x), y).mean() for x, y in batch.minibatches()]
    return torch.stack(risks)


def require_six_updates(
    algorithm: Algorithm,
    loss: Callable[[nn.Module, Batch, int, float], Tensor],
    optimizer: Callable[..., torch.optim.Optimizer],
    moved: float = 1e-3,
    anew: int = 0,
) -> None:
    """Updates are those of one of torch's optimizers on a loss of network, batch, step and a factor.

    The factor is of what the method adds to the risk: 1, and 0 for weights that must differ by `moved`.
    The optimizer is a new one at step `anew`.
    """
    ends = []
    for factor in (1.0, 0.0):
        network = copy.deepcopy(algorithm.network)
        for step in range(6):
            if step in (0, anew):
                used = optimizer(network.parameters())
            used.zero_grad()
            batch = tiny_batch(algorithm.problem.task, step)
            loss(network, batch, step, factor).backward()  # type: ignore[no-untyped-call]
            used.step()
        ends.append(parameters_to_vector(network.parameters()))
    for step in range(6):
        algorithm.train_step(tiny_batch(algorithm.problem.task, step), step)
    theirs, without = ends
    ours = parameters_to_vector(algorithm.network.parameters())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)
    assert (theirs - without).abs().max() > moved


def squared_norm(network: nn.Module) -> Tensor:
    return torch.stack([p.square().sum() for p in network.parameters()]).sum()


def descend(module: nn.Module, loss: Tensor, lr: float = 0.01) -> None:
    """Subtract `lr` times a loss' gradient from a module's parameters."""
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p.sub_(lr * g)
