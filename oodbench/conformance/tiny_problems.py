"""Tiny problems of every kind of task, on which methods are checked."""

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
"""One task of each kind."""
ENVIRONMENTS = ("a", "b", "c", "d", "e")
"""Five environments, because no other dimension of a tiny problem has size five."""
EXAMPLES = 6
"""Examples in an environment."""
GROUPS = {"binary": (3, 1, 1, 1), "multiclass": (2, 1, 1, 1, 1, 0)}
"""Examples in each (class, attribute) group; classes differ in size."""
VIEWS = 3
"""Additional views of each input; a method uses the first `needs.views`."""
STEPS = 20_000
LAST = STEPS - 1
"""The last step, after every annealing."""
PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "momentum": 0.0,
    "lr": 0.01,
    "lr_schedule": "constant",
    "weight_decay": 0.0,
}
"""Hyperparameters with which an update subtracts 0.01 times the gradient."""


class ImageTask(Task):
    """A task on images of two channels and 4 x 4 pixels; other tasks have four numbers as input."""


def suited(cls: type[Algorithm], task: Task) -> Task:
    """The first of these tasks that the method does not skip: as given, on images, with one output."""
    forms = [task, ImageTask(task.kind, task.num_outputs)]
    forms += [Task(task.kind)] if task.kind == "regression" else []
    return next((form for form in forms if why_skipped(cls, tiny_problem(form)) is None), task)


def tiny_problem(task: Task, environments: tuple[str, ...] = ENVIRONMENTS) -> Problem:
    """A problem with small inputs, two attributes, and everything that a method may need."""
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
    """Random float64 inputs and targets (E, B, ...); inputs of different environments differ in scale."""
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
    frozen: bool = False,
) -> Algorithm:
    """The algorithm on a small network with fixed initial weights; `values` replace defaults.

    If `frozen`, only the network's classifier is trained.
    """
    where = f"the hyperparameters of {cls.__name__}"
    hparams = checked(cls.Hparams, {**defaults(cls.Hparams), **(values or {})}, where)
    small = {"width": 8 if network == "MLP" else 2}
    sizes = problem.input_shape, problem.task.num_outputs
    built = build(network, small, *sizes, seed=0)
    built.featurizer.requires_grad_(not frozen)
    torch.manual_seed(1)
    algorithm = cls(built, problem, hparams)
    usual = torch.get_default_dtype()  # tensors that the method makes in another precision keep it
    for holder in (*algorithm.parameters(), *algorithm.buffers()):
        holder.data = holder.data.to(dtype) if holder.dtype == usual else holder.data
    algorithm.network.to(memory_format=memory_format)
    algorithm.optimizers = algorithm.configure()
    return algorithm


def weights_of(algorithm: Algorithm) -> Tensor:
    """A copy of the network's parameters, (P,)."""
    return parameters_to_vector(algorithm.network.parameters()).detach().clone()


def network_step(algorithm: Algorithm, batch: Batch, step: int) -> Tensor:
    """Run an update; returns the network's change, (P,), divided by minus the learning rate.

    With the hyperparameters PLAIN this is the method's gradient.
    """
    before = weights_of(algorithm)
    algorithm.train_step(batch, step)
    lr: float = algorithm.hparams.lr
    return (before - weights_of(algorithm)) / lr
