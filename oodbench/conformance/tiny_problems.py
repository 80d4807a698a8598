"""Tiny problems of every kind of task, for the tests of algorithms."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Algorithm, Batch, Problem
from oodbench.hparams import checked, defaults
from oodbench.networks.base import build
from oodbench.tasks import Task

TASKS = {
    "binary": Task("binary"),
    "multiclass": Task("multiclass", 3),
    "multilabel": Task("multilabel", 3),
    "distribution": Task("distribution", 4),
    "regression": Task("regression", 2),
}
"""The tasks that methods are tried on, one of each kind."""
ENVIRONMENTS = ("a", "b", "c", "d", "e")
"""Five environments: a number that no other size of a tiny problem has."""
STEPS = 20_000
LAST = STEPS - 1
"""The last step, which lies past every annealing."""
PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "momentum": 0.0,
    "lr": 0.01,
    "lr_schedule": "constant",
    "weight_decay": 0.0,
}
"""Hyperparameters under which an update subtracts 0.01 times the gradient."""


def tiny_problem(task: Task, environments: tuple[str, ...] = ENVIRONMENTS) -> Problem:
    """A problem with four inputs."""
    return Problem((4,), task, environments, STEPS)


def tiny_batch(
    task: Task, seed: int = 0, environments: int = len(ENVIRONMENTS), examples: int = 6
) -> Batch:
    """Random float64 inputs and targets, (E, B, ...); the environments' inputs differ in scale."""
    generator = torch.Generator().manual_seed(seed)
    shape = (environments, examples)
    options: Any = {"generator": generator, "dtype": torch.float64}
    scale = 0.5 + torch.arange(environments, dtype=torch.float64)
    x = torch.randn(*shape, 4, **options) * scale[:, None, None]
    y = {
        "binary": torch.randint(2, shape, **options),
        "multiclass": torch.randint(task.num_outputs, shape, generator=generator),
        "distribution": torch.randn(*shape, task.num_outputs, **options).softmax(-1),
        "regression": torch.randn(*shape, task.num_outputs, **options),
        "multilabel": torch.randint(2, (*shape, task.num_outputs), **options),
    }
    y["multilabel"][..., 0, 0] = float("nan")
    return Batch(x, y[task.kind])


def tiny_algorithm(
    cls: type[Algorithm],
    problem: Problem,
    values: Mapping[str, object] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Algorithm:
    """The algorithm on a small MLP, always with the same weights, at `values` over its defaults."""
    place = f"the hyperparameters of {cls.__name__}"
    hparams = checked(cls.Hparams, {**defaults(cls.Hparams), **(values or {})}, place)
    network = build("MLP", {"width": 8}, problem.input_shape, problem.task.num_outputs, seed=0)
    torch.manual_seed(1)
    algorithm = cls(network, problem, hparams).to(dtype)
    algorithm.optimizers = algorithm.configure()
    return algorithm


def network_step(algorithm: Algorithm, batch: Batch, step: int) -> Tensor:
    """Do an update; what it subtracted from the network's P parameters over the learning rate, (P,).

    At the hyperparameters `PLAIN` this is the gradient that the method gave the network.
    """
    before = parameters_to_vector(algorithm.network.parameters()).detach().clone()
    algorithm.update(batch, step)
    after = parameters_to_vector(algorithm.network.parameters()).detach()
    lr: float = algorithm.hparams.lr
    return (before - after) / lr
