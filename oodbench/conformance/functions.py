"""Requirements on the hooks that a method overrides: what they may read, draw and change."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from oodbench.algorithms import Algorithm, Batch
from oodbench.conformance.requirement import DoesNotApply, on_one_task, require_close, requirement
from oodbench.conformance.tiny_problems import (
    ENVIRONMENTS,
    LAST,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.errors import described
from oodbench.hparams import distributions, draw
from oodbench.tasks import Task
from oodbench.terminal import VMAP_IS_SLOW
from oodbench.train.vectorized import explained


@requirement
@on_one_task
def overrides_one_level(cls: type[Algorithm], task: Task) -> None:
    """The method has a docstring, and overrides one of `objective`, `combine` and `update`."""
    assert (cls.__dict__.get("__doc__") or "").strip(), "it has no docstring for the tables"
    own_update = cls.overrides("update")
    both = cls.overrides("objective") and cls.overrides("combine")
    assert own_update or not both, (
        "it overrides both `objective` and `combine`, and `combine` ignores `objective`"
    )
    both = cls.needs.views > 0 and cls.overrides("combine")
    assert not both, "it needs `views` and overrides `combine`, whose gradients have a single view"


@requirement
def objective_is_pure(cls: type[Algorithm], task: Task) -> None:
    """`objective` and `next_buffers` give the same twice, and change neither state nor random numbers.

    Keep state in a buffer, whose next value `next_buffers` returns; draw random numbers in `noise`.
    """
    algorithm, batch = tiny_algorithm(cls, tiny_problem(task)), tiny_batch(task)
    noisy = replace(batch, noise=algorithm.noise_at(batch, 3))
    out = algorithm.outputs(algorithm.prepare(noisy), 3)
    with _unchanged(algorithm):
        buffers, again = algorithm.next_buffers(out), algorithm.next_buffers(out)
        out.buffers.update(buffers)
        first, second = algorithm.minimised(out), algorithm.minimised(out)
    assert torch.equal(first, second), f"it gives {first.item()}, then {second.item()}"
    for name, value in buffers.items():
        wanted, given = algorithm.get_buffer(name).shape, value.shape
        assert given == wanted, f"'{name}' becomes {tuple(given)}"
        assert torch.equal(value, again[name]), f"'{name}' has two values"


@contextmanager
def _unchanged(algorithm: Algorithm) -> Iterator[None]:
    state = {name: value.clone() for name, value in algorithm.state_dict().items()}
    rng = torch.get_rng_state()
    yield
    for name, value in algorithm.state_dict().items():
        assert torch.equal(value, state[name]), f"it changes '{name}'"
    assert torch.equal(torch.get_rng_state(), rng), "it draws random numbers"


@requirement
def batches_come_from_the_generator(cls: type[Algorithm], task: Task) -> None:
    """`noise` draws from the step's generator only, and `prepare` draws nothing.

    Write `torch.rand(n, generator=generator)`.
    """
    if not cls.overrides("noise", "prepare"):
        raise DoesNotApply("it trains on the batches as they are")
    algorithm, batch = tiny_algorithm(cls, tiny_problem(task)), tiny_batch(task)
    with _unchanged(algorithm):
        first, second = algorithm.prepared(batch, 3), algorithm.prepared(batch, 3)
    for one, other in ((first.x, second.x), (first.y, second.y)):
        assert torch.equal(one.nan_to_num(), other.nan_to_num()), "the same step has two batches"
    if cls.overrides("noise"):
        first_noise, *others = [algorithm.noise_at(batch, step) for step in range(20)]
        for name, value in first_noise.items():
            varies = any(not torch.equal(value, other[name]) for other in others)
            assert varies, f"'{name}' is the same in twenty steps"


class _Objective(nn.Module):
    """The objective as a module, so that `functional_call` can vary parameters and hyperparameters."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        self.algorithm, self.usual = algorithm, algorithm.hparams

    def at(self, values: dict[str, Any]) -> Algorithm:
        """The method at these values."""
        self.algorithm.hparams = replace(self.usual, **values)
        return self.algorithm

    def forward(
        self, values: dict[str, Any], noise: dict[str, Tensor], batch: Batch, step: int
    ) -> Tensor:
        algorithm = self.at(values)
        out = algorithm.outputs(algorithm.prepare(replace(batch, noise=noise)), step)
        out.buffers.update(algorithm.next_buffers(out))
        return algorithm.minimised(out)


def _drawn_numbers(cls: type[Algorithm], count: int) -> list[dict[str, Any]]:
    drawn = [draw(cls.Hparams, cls.__name__, index) for index in range(1, count + 1)]
    numbers = [
        name
        for name, distribution in distributions(cls.Hparams).items()
        if distribution is not None and all(type(values[name]) in (int, float) for values in drawn)
    ]
    return [{name: values[name] for name in numbers} for values in drawn]


def _many(function: Callable[..., Any], *values: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", VMAP_IS_SLOW)
        try:
            return function(*values)
        except RuntimeError as error:
            raise AssertionError(explained(error) or described(error)) from error


@requirement
def trains_many_runs_as_one(cls: type[Algorithm], task: Task) -> None:
    """`objective` and `combine` take a drawn number as a tensor: `vmap` over runs changes nothing.

    Keep an objective's state in a buffer.
    """
    module = _Objective(tiny_algorithm(cls, tiny_problem(task)))
    drawn, batch = _drawn_numbers(cls, 3), tiny_batch(task)
    numbers = {n: torch.tensor([v[n] for v in drawn], dtype=torch.float64) for n in drawn[0]}
    torch.manual_seed(2)
    leaves = {
        name: torch.stack([p.detach() + 0.1 * torch.randn_like(p) for _ in drawn]).requires_grad_()
        for name, p in module.named_parameters()
    }

    for step in (0, 50, LAST):

        def value(p: Any, values: Any, noise: Any, step: int = step) -> Tensor:
            result: Tensor = functional_call(module, p, (values, noise, batch, step))
            return result

        noise = [module.at(values).noise_at(batch, step) for values in drawn]  # outside of `vmap`
        every = {name: torch.stack([each[name] for each in noise]) for name in noise[0]}
        of_runs = _many(vmap(value), leaves, numbers, every)
        options: Any = {"allow_unused": True, "materialize_grads": True}
        found = torch.autograd.grad(of_runs.sum(), list(leaves.values()), **options)
        for k, values in enumerate(drawn):
            alone = {name: p[k].detach() for name, p in leaves.items()}
            gradient, wanted = grad_and_value(value)(alone, values, noise[k])
            what = f"the objective of run {k} differs at step {step}"
            require_close(of_runs[k].detach(), wanted, what)
            for (name, g), ours in zip(gradient.items(), found, strict=True):
                require_close(ours[k], g, f"the gradient of '{name}' differs")

    stacks = torch.randn(len(drawn), len(ENVIRONMENTS), 40, dtype=torch.float64)

    def combined(values: Any, stack: Tensor) -> Tensor:
        return module.at(values).combine(stack)

    combined_of_runs = _many(vmap(combined), numbers, stacks)
    for k, values in enumerate(drawn):
        require_close(combined_of_runs[k], combined(values, stacks[k]), "`combine` differs")


@requirement
def combines_signs_as_gradients(cls: type[Algorithm], task: Task) -> None:
    """The reduction's `combine_signs` gives the same as `combine`."""
    reduction = tiny_algorithm(cls, tiny_problem(task)).reduction
    if reduction is None or reduction.combine_signs is None:
        raise DoesNotApply("it has no `combine_signs`")
    stack = torch.randn(7, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    combined = reduction.combine_signs(stack.sign().sum(0), stack.mean(0), 7)
    require_close(combined, reduction.combine(stack), "`combine_signs` differs")
