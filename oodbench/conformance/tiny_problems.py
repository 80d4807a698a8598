"""Tiny problems of every kind of task, for the tests of algorithms."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Algorithm, Batch, Problem, why_skipped
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
EXAMPLES = 6
"""The number of examples of an environment."""
GROUPS = {"binary": (3, 1, 1, 1), "multiclass": (2, 1, 1, 1, 1, 0)}
"""How many of these each group of class and attribute has; the classes differ in size."""
VIEWS = 3
"""The number of further views of each input; a method takes as many as it has `views`."""
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


class ImageTask(Task):
    """A task on images of two channels and 4 x 4 pixels, where others are on four numbers."""


def suited(cls: type[Algorithm], task: Task) -> Task:
    """The task in the first form that the method takes: as is, on images, with one output."""
    forms = [task, ImageTask(task.kind, task.num_outputs)]
    forms += [Task(task.kind)] if task.kind == "regression" else []
    return next((form for form in forms if why_skipped(cls, tiny_problem(form)) is None), task)


def tiny_problem(task: Task, environments: tuple[str, ...] = ENVIRONMENTS) -> Problem:
    """A problem with few inputs, whose examples have one of two attributes."""
    shape = (2, 4, 4) if isinstance(task, ImageTask) else (4,)
    count = len(environments)
    return Problem(
        shape,
        task,
        environments,
        STEPS,
        attributes=2,
        sizes=(EXAMPLES,) * count,
        counts=(GROUPS[task.kind],) * count if task.has_classes else (),
        pretrained=True,
        zero_shot=True,
    )


def tiny_batch(
    task: Task, seed: int = 0, environments: int = len(ENVIRONMENTS), examples: int = EXAMPLES
) -> Batch:
    """Random float64 inputs and targets, (E, B, ...); the environments' inputs differ in scale."""
    generator = torch.Generator().manual_seed(seed)
    shape = (environments, examples)
    options: Any = {"generator": generator, "dtype": torch.float64}
    scale = 0.5 + torch.arange(environments, dtype=torch.float64)
    size = tiny_problem(task).input_shape
    x = torch.randn(*shape, math.prod(size), **options) * scale[:, None, None]
    y = {
        "binary": torch.randint(2, shape, **options),
        "multiclass": torch.randint(task.num_outputs, shape, generator=generator),
        "distribution": torch.randn(*shape, task.num_outputs, **options).softmax(-1),
        "regression": torch.randn(*shape, task.num_outputs, **options),
        "multilabel": torch.randint(2, (*shape, task.num_outputs), **options),
    }
    y["multilabel"][..., 0, 0] = float("nan")
    attributes = torch.randint(2, shape, generator=generator)
    index = torch.arange(examples).expand(shape)
    views = x.unsqueeze(2) + 0.1 * torch.randn(*shape, VIEWS, math.prod(size), **options)
    return Batch(
        torch.unflatten(x, 2, size),
        y[task.kind],
        index=index,
        attributes=attributes,
        views=torch.unflatten(views, 3, size),
    )


def tiny_algorithm(
    cls: type[Algorithm],
    problem: Problem,
    values: Mapping[str, object] | None = None,
    dtype: torch.dtype = torch.float64,
    network: str = "MLP",
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Algorithm:
    """The algorithm on a small network with fixed weights, at `values` over its defaults."""
    where = f"the hyperparameters of {cls.__name__}"
    hparams = checked(cls.Hparams, {**defaults(cls.Hparams), **(values or {})}, where)
    small = {"width": 8 if network == "MLP" else 2}
    sizes = problem.input_shape, problem.task.num_outputs
    built = build(network, small, *sizes, seed=0)
    torch.manual_seed(1)
    algorithm = cls(built, problem, hparams)
    usual = torch.get_default_dtype()  # what the method makes in another precision stays in it
    for holder in (*algorithm.parameters(), *algorithm.buffers()):
        holder.data = holder.data.to(dtype) if holder.dtype == usual else holder.data
    algorithm.network.to(memory_format=memory_format)
    algorithm.optimizers = algorithm.configure()
    return algorithm


def network_step(algorithm: Algorithm, batch: Batch, step: int) -> Tensor:
    """Do an update; what it subtracted from the network's P parameters over the learning rate, (P,).

    At the hyperparameters `PLAIN` this is the gradient that the method gave the network.
    """
    before = parameters_to_vector(algorithm.network.parameters()).detach().clone()
    algorithm.train_step(batch, step)
    after = parameters_to_vector(algorithm.network.parameters()).detach()
    lr: float = algorithm.hparams.lr
    return (before - after) / lr
