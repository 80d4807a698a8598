"""The requirements: what hooks may read, draw and change, and how updates must behave."""

import copy
import io
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from oodbench.algorithms import Algorithm, Batch, Problem, why_skipped
from oodbench.conformance.checks import DoesNotApply, on_one_task, require_close, requirement
from oodbench.conformance.tiny_problems import (
    ENVIRONMENTS,
    LAST,
    PLAIN,
    STEPS,
    ImageTask,
    network_step,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
    weights_of,
)
from oodbench.errors import UserError, described
from oodbench.hparams import checked, defaults, distributions, draw
from oodbench.tasks import Task
from oodbench.terminal import VMAP_IS_SLOW
from oodbench.train.averages import make_average
from oodbench.train.process import (
    generator_states,
    kept_generators,
    seed_process,
    set_generator_states,
)
from oodbench.train.vectorized import explained

SHORT = 60
"""Steps of a short run."""


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


def _float32(batch: Batch) -> Batch:
    values = ((name, getattr(batch, name)) for name in ("x", "y", "views"))
    return replace(batch, **{k: v.float() for k, v in values if v.is_floating_point()})


def _require_finite_update(algorithm: Algorithm, batch: Batch, step: int) -> None:
    metrics = algorithm.train_step(_float32(batch), step)
    for name, value in metrics.items():
        assert not value.requires_grad, f"the metric '{name}' is not detached"
        assert value.isfinite(), f"'{name}' is {value.item()} at step {step}"
    for name, parameter in algorithm.named_parameters():
        assert parameter.isfinite().all(), f"'{name}' is not finite after step {step}"


@requirement
def updates_are_finite(cls: type[Algorithm], task: Task) -> None:
    """With default and drawn values all numbers stay finite, and the network changes and predicts.

    An `update` calls `self.descend(loss, step)`. Write `.clamp_min(1e-12)` before a root, a logarithm or a
    division, and `value.detach()` for a metric.
    """
    for index in range(2):
        values = draw(cls.Hparams, "every method", index)
        algorithm = tiny_algorithm(cls, tiny_problem(task), values, dtype=torch.float32)
        before = weights_of(algorithm)
        batch = _float32(tiny_batch(task))
        algorithm.fit_examples(batch.x.flatten(0, 1), batch.y.flatten(0, 1))
        _updates(algorithm, (0, 1, 2, LAST))
        moved = not torch.equal(before, weights_of(algorithm))
        assert moved or not cls.trains_network, "four updates do not change the network"
        for step in (0, 1, 2, LAST):
            _require_finite_update(algorithm, tiny_batch(task, step), step)
    shape = tuple(algorithm.predict(torch.zeros(7, *algorithm.problem.input_shape)).shape)
    wanted = (7, task.num_outputs)
    assert shape == wanted, f"the logits of 7 examples have the shape {shape}, not {wanted}"


@requirement
def differs_from_erm(cls: type[Algorithm], task: Task) -> None:
    """With default values it trains the network differently from ERM, after annealing or in a short run.

    The difference may come from buffers, from the distance to the initial weights, or from an early stage
    of training. A method that overrides `predict` may train as ERM does.
    """
    problem, batch = tiny_problem(task), tiny_batch(task)
    if cls.neutral(problem) == {}:
        raise DoesNotApply("it is ERM at any hyperparameters")
    if cls.overrides("predict"):
        raise DoesNotApply("it overrides `predict`")
    plain = tiny_algorithm(Algorithm, problem, PLAIN)
    _move(plain)
    erm = network_step(plain, batch, LAST)
    # one update from the initial weights fills the buffers; then the gradients at the same moved weights
    algorithm = tiny_algorithm(cls, problem, PLAIN)
    initial = copy.deepcopy(algorithm.network.state_dict())
    algorithm.train_step(batch, 0)
    algorithm.network.load_state_dict(initial)
    _move(algorithm)
    gradient = network_step(algorithm, batch, LAST)
    difference = float((gradient - erm).abs().max())
    if difference > 1e-6 * float(erm.abs().max()):
        return
    (start, end), (_, of_erm) = (_short_run(each, problem) for each in (cls, Algorithm))
    apart = float((end - of_erm).abs().max())
    assert apart > 1e-5 * float((of_erm - start).abs().max()), (
        "after annealing its gradient is ERM's, and a short run ends with ERM's weights"
    )


def _short_run(cls: type[Algorithm], problem: Problem) -> tuple[Tensor, Tensor]:
    algorithm = tiny_algorithm(cls, replace(problem, steps=SHORT), PLAIN, dtype=torch.float32)
    start = weights_of(algorithm)
    for step in range(SHORT):
        algorithm.train_step(_float32(tiny_batch(problem.task, step % 10)), step)
    return start, weights_of(algorithm)


def _move(algorithm: Algorithm) -> None:
    with torch.no_grad():
        for p in algorithm.network.parameters():
            p.add_(0.01)


@requirement
def is_erm_when_neutral(cls: type[Algorithm], task: Task) -> None:
    """With its `neutral` hyperparameters it gives the network ERM's gradient, to round-off.

    Leave `neutral` out of a class that has no such values.
    """
    problem, batch = tiny_problem(task), tiny_batch(task)
    neutral = cls.neutral(problem)
    if neutral is None:
        raise DoesNotApply("it has no neutral hyperparameters")
    for step in (0, LAST):
        erm = network_step(tiny_algorithm(Algorithm, problem, PLAIN), batch, step)
        gradient = network_step(tiny_algorithm(cls, problem, {**PLAIN, **neutral}), batch, step)
        require_close(gradient, erm, f"the gradient differs from ERM's at step {step}")


@requirement
def ignores_the_order_of_environments(cls: type[Algorithm], task: Task) -> None:
    """Permuting the environments changes the network's gradient by no more than round-off.

    The check permutes the method's own parameters and buffers too, along every axis whose length is the
    number of environments, such as a discriminator's outputs.
    """
    if cls.overrides("noise"):
        raise DoesNotApply("its random numbers depend on the environments' order")
    order = [3, 0, 4, 1, 2]
    batch = tiny_batch(task)
    values = PLAIN if cls.trains_network else {}
    plain = tiny_algorithm(cls, tiny_problem(task), values)
    names = tuple(ENVIRONMENTS[i] for i in order)
    permuted = tiny_algorithm(cls, tiny_problem(task, names), values)
    state = plain.state_dict()
    for name, value in state.items():
        if not name.startswith("network."):
            for axis, size in enumerate(value.shape):
                if size == len(order):
                    state[name] = state[name].index_select(axis, torch.tensor(order))
    permuted.load_state_dict(state)
    before = torch.get_rng_state().tolist(), generator_states()
    wanted = network_step(plain, batch, LAST)
    if (torch.get_rng_state().tolist(), generator_states()) != before:
        raise DoesNotApply(
            "its update draws random numbers, which depend on the environments' order"
        )
    reordered = network_step(permuted, replace(batch.of(order), environments=None), LAST)
    require_close(reordered, wanted, "the gradient depends on the environments' order")


@requirement
@on_one_task
def ignores_the_layout_in_memory(cls: type[Algorithm], task: Task) -> None:
    """Images and convolutions train to the same weights in either memory format, contiguous or channels
    last.

    torch's fused optimizers assume that a gradient has its parameter's memory format: make optimizers by
    `self.optimizer_of`, which ensures that.
    """
    image = ImageTask(task.kind, task.num_outputs)
    reason = why_skipped(cls, tiny_problem(image))
    if reason is not None or not cls.trains_network:
        raise DoesNotApply(reason or "it does not train the network")
    formats = (torch.contiguous_format, torch.channels_last)
    with kept_generators():
        wanted, *others = [_trained(cls, image, *f) for f in itertools.product(formats, formats)]
    for weights in others:
        error = max(float((w - weights[name]).abs().max()) for name, w in wanted.items())
        assert error <= 1e-8, f"weights differ by {error:.2g} after three updates"


def _trained(
    cls: type[Algorithm], task: Task, inputs: torch.memory_format, weights: torch.memory_format
) -> dict[str, Tensor]:
    algorithm = tiny_algorithm(cls, tiny_problem(task), network="ConvNet", memory_format=weights)
    seed_process(0)
    for step in (0, 1, LAST):
        batch = tiny_batch(task, step)
        laid_out: dict[str, Any] = {}
        for name in ("x", "views"):
            images: Tensor = getattr(batch, name)
            flat = images.flatten(0, -4).contiguous(memory_format=inputs)
            laid_out[name] = torch.unflatten(flat, 0, images.shape[:-3])
        algorithm.train_step(replace(batch, **laid_out), step)
    return algorithm.state_dict()


@requirement
def resumes_exactly(cls: type[Algorithm], task: Task) -> None:
    """The saved state is complete: a resumed run equals an uninterrupted one, bit for bit.

    Keep the state of updates in buffers: `self.register_buffer("name", tensor)`.
    """
    problem = tiny_problem(task)
    whole, resumed = (tiny_algorithm(cls, problem, dtype=torch.float32) for _ in range(2))
    _updates(whole, range(3))
    file = io.BytesIO()
    torch.save((_state(whole), torch.get_rng_state(), generator_states()), file)
    _updates(whole, range(3, 6))
    file.seek(0)
    (state, optimizers), rng, of_process = torch.load(file, weights_only=True)
    resumed.load_state_dict(state)
    for name, optimizer in resumed.optimizers.items():
        optimizer.load_state_dict(optimizers[name])
    torch.set_rng_state(rng)
    set_generator_states(of_process)
    _updates(resumed, range(3, 6))
    (wanted, wanted_optimizers), (state, optimizers) = _state(whole), _state(resumed)
    for name, value in wanted.items():
        assert torch.equal(state[name], value), f"'{name}' differs after resuming"
    same = _tensors(optimizers), _tensors(wanted_optimizers)
    assert all(map(torch.equal, *same)), "the optimizers' states differ after resuming"


def _updates(algorithm: Algorithm, steps: Iterable[int]) -> None:
    for step in steps:
        algorithm.train_step(_float32(tiny_batch(algorithm.problem.task, step)), step)


def _state(algorithm: Algorithm) -> tuple[dict[str, Any], dict[str, Any]]:
    return algorithm.state_dict(), {n: o.state_dict() for n, o in algorithm.optimizers.items()}


def _tensors(tree: object) -> list[Tensor]:
    if isinstance(tree, dict):
        return [tensor for value in tree.values() for tensor in _tensors(value)]
    return [tree] if isinstance(tree, Tensor) else []


@requirement
@on_one_task
def is_averaged_as_a_whole(cls: type[Algorithm], task: Task) -> None:
    """Weight averages, kept weights and copies contain everything that `predict` reads.

    Make such state a parameter or a buffer: `self.register_buffer("name", tensor)`.
    """
    if not cls.trains_network:
        raise DoesNotApply("it does not train the network, so no weights are averaged")
    image, network = ImageTask(task.kind, task.num_outputs), "MLP"
    if why_skipped(cls, tiny_problem(image)) is None:
        task, network = image, "ConvNet"
    algorithm, loaded = (tiny_algorithm(cls, tiny_problem(task), network=network) for _ in range(2))
    average = make_average({"name": "swa", "start": 0}, algorithm, STEPS, 1)
    x, states = tiny_batch(task, 4).x.flatten(0, 1), []

    def predictions(algorithm: Algorithm) -> Tensor:
        return algorithm.eval().predict(x).detach()

    for step in range(4):
        algorithm.train_step(tiny_batch(task, step), step)
        if step == 3:  # so few updates may not change everything that `predict` reads
            _perturb(algorithm)
        average.update(step)
        states.append(copy.deepcopy(algorithm.state_dict()))
    with average.in_place():
        kept, found = copy.deepcopy(algorithm.state_dict()), predictions(algorithm)
        copied = predictions(copy.deepcopy(algorithm, {id(algorithm.optimizers): {}}))
    assert torch.equal(copied, found), "a copy predicts something else"
    loaded.load_state_dict(kept)
    assert torch.equal(predictions(loaded), found), "loaded weights predict something else"
    for name, value in kept.items():
        if value.is_floating_point():
            kept[name] = torch.stack([state[name] for state in states]).mean(0)
    loaded.load_state_dict(kept)
    require_close(found, predictions(loaded), "an average leaves out what `predict` reads")


@torch.no_grad()
def _perturb(algorithm: Algorithm) -> None:
    for name, value in algorithm.state_dict(keep_vars=True).items():
        frozen = name.startswith("network.") and isinstance(value, nn.Parameter)
        if value.is_floating_point() and (value.requires_grad or not frozen):
            value.add_(torch.linspace(0, 0.1, value.numel()).view(value.shape))


@requirement
def takes_one_environment_or_says_why_not(cls: type[Algorithm], task: Task) -> None:
    """With a single training environment an update works, or `skip` gives a reason.

    A method that needs two has `needs = Needs(environments=2)` in its class.
    """
    problem = tiny_problem(task, ENVIRONMENTS[:1])
    reason = why_skipped(cls, problem)
    if reason is None:
        algorithm = tiny_algorithm(cls, problem, dtype=torch.float32)
        _require_finite_update(algorithm, tiny_batch(task, environments=1), LAST)
    else:
        assert isinstance(reason, str) and reason.strip(), "`skip` gives an empty reason"


@requirement
def takes_one_example(cls: type[Algorithm], task: Task) -> None:
    """An update works with a single example of each environment, or raises UserError with the reason.

    For example `raise UserError("MyMethod needs two examples of each environment")`.
    """
    algorithm = tiny_algorithm(cls, tiny_problem(task), dtype=torch.float32)
    for step in (0, LAST):
        try:
            _require_finite_update(algorithm, tiny_batch(task, examples=1), step)
        except UserError as reason:
            raise DoesNotApply(str(reason)) from reason


@requirement
@on_one_task
def leaves_frozen_weights(cls: type[Algorithm], task: Task) -> None:
    """With a frozen featurizer updates work and leave it as it is, or raise UserError with the reason.

    Take gradients of `[p for p in self.network.parameters() if p.requires_grad]`; make no empty optimizer.
    """
    try:
        algorithm = tiny_algorithm(cls, tiny_problem(task), dtype=torch.float32, frozen=True)
        weights = algorithm.network.named_parameters()
        frozen = [(name, p, p.clone()) for name, p in weights if not p.requires_grad]
        for step in (0, LAST):
            _require_finite_update(algorithm, tiny_batch(task, step), step)
    except UserError as reason:
        raise DoesNotApply(str(reason)) from reason
    for name, parameter, before in frozen:
        assert torch.equal(parameter, before), f"the frozen '{name}' changes"


@requirement
@on_one_task
def draws_within_limits(cls: type[Algorithm], task: Task) -> None:
    """Defaults and drawn values are within the limits for values that a user sets.

    The limits are `low` and `high` in `hparam(default, distribution, low=0.0)`.
    """
    families = {family for f in fields(cls.Hparams) for family in f.metadata.get("by_family", {})}
    for family in ("", *sorted(families)):
        values = [*defaults(cls.Hparams, family).items()]
        for name, distribution in distributions(cls.Hparams, family).items():
            if distribution is not None:
                quantiles = [*(i / 20 for i in range(20)), math.nextafter(1, 0)]
                values += [(name, distribution.at(u)) for u in quantiles]
        for name, value in values:
            where = f"the hyperparameters of {cls.__name__}"
            taken = getattr(checked(cls.Hparams, {name: value}, where), name)
            assert type(taken) is type(value) and taken == value, (
                f"'{name}' of {value!r} would become {taken!r}"
            )
