"""The rules that every algorithm keeps, checked on tiny problems of every kind of task.

One call puts an algorithm of your own through all of them, registered or not, and prints which were
kept, which do not apply and which are broken:

    from oodbench.conformance import check_algorithm

    check_algorithm(MyMethod)

Each rule is the docstring of one of the functions in `checks`.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Algorithm, Batch, Outputs, algorithms
from oodbench.conformance.tiny_problems import (
    ENVIRONMENTS,
    LAST,
    PLAIN,
    TASKS,
    network_step,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.hparams import checked, defaults, distributions, draw
from oodbench.tasks import Task

Check = Callable[[type[Algorithm], Task], None]

checks: list[Check] = []
"""Every rule as a function of an algorithm and a task; it raises AssertionError where it is broken, and
`DoesNotApply` where the method is not of the kind that the rule is about."""


class DoesNotApply(Exception):
    """The reason why a rule does not apply to a method."""


def check_algorithm(algorithm: str | type[Algorithm]) -> None:
    """Put an algorithm, a registered name or a class, through all `checks` on all `TASKS`.

    Every rule is tried and printed, kept, broken or not applicable with the reason. Raises
    AssertionError with a sentence for each broken rule, and UserError for an unknown name.
    """
    cls = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    reasons = {task.kind: cls.skip(tiny_problem(task)) for task in TASKS.values()}
    tried = [task for task in TASKS.values() if reasons[task.kind] is None]
    assert tried, f"{cls.__name__} skips every kind of task, so that nothing can be checked"
    broken: list[str] = []
    for check in checks:
        print(_outcome(cls, check, tried, broken))
    for kind, reason in reasons.items():
        if reason is not None:
            print(f"- no {kind} task was tried: {reason}")
    assert not broken, "\n".join(broken)


def _outcome(cls: type[Algorithm], check: Check, tasks: Sequence[Task], broken: list[str]) -> str:
    """Try a rule on some tasks; adds a sentence to `broken` for each on which it does not hold."""
    rule = sentence(check)
    before = len(broken)
    for task in tasks:
        try:
            check(cls, task)
        except DoesNotApply as reason:
            return f"- {rule}: does not apply, {reason}"
        except AssertionError as error:
            broken.append(str(error))
    return f"{'x' if len(broken) > before else '+'} {rule}"


def sentence(check: Check) -> str:
    """The rule that a check stands for."""
    return " ".join((check.__doc__ or "").split()).partition(". ")[0].rstrip(".")


def _rule(function: Check) -> Check:
    """Add a check, to hold on the problems that the algorithm does not skip."""

    @wraps(function)
    def check(cls: type[Algorithm], task: Task) -> None:
        if cls.skip(tiny_problem(task)) is not None:
            return
        try:
            function(cls, task)
        except DoesNotApply:
            raise
        except Exception as error:
            advice = " ".join((function.__doc__ or "").split()).partition(". ")[2]
            raise AssertionError(
                f"{cls.__name__} breaks the rule '{sentence(function)}' on a {task.kind} task: "
                f"{error} {advice}".rstrip()
            ) from error

    checks.append(check)
    return check


def _require_close(found: Tensor, wanted: Tensor, what: str) -> None:
    """Equality to float64's round-off, relative to the largest component."""
    error = float((found - wanted).abs().max())
    scale = float(wanted.abs().max())
    assert error <= 1e-9 * (1 + scale), f"{what} (by {error:.3g}, at a scale of {scale:.3g})"


def _float32(batch: Batch) -> Batch:
    y = batch.y.float() if batch.y.is_floating_point() else batch.y
    return replace(batch, x=batch.x.float(), y=y)


def _require_finite_update(algorithm: Algorithm, batch: Batch, step: int) -> None:
    metrics = algorithm.update(_float32(batch), step)
    assert "loss" in metrics, "update returns no 'loss'"
    for name, value in metrics.items():
        assert value.dim() == 0, f"the metric '{name}' is not a scalar"
        assert not value.requires_grad, f"the metric '{name}' is not detached"
        assert value.isfinite(), f"'{name}' is {value.item()} at step {step}"
    for name, parameter in algorithm.named_parameters():
        assert parameter.isfinite().all(), f"'{name}' is not finite after step {step}"


@_rule
def overrides_one_level(cls: type[Algorithm], task: Task) -> None:
    """It has a docstring, and overrides `objective`, `combine` or the whole of `update`."""
    assert (cls.__dict__.get("__doc__") or "").strip(), "it has no docstring for the tables"
    own_update = cls.update is not Algorithm.update
    both = cls.objective is not Algorithm.objective and cls.combine is not Algorithm.combine
    assert own_update or not both, (
        "it overrides both `objective` and `combine`, which ignores the first"
    )


@_rule
def objective_is_pure(cls: type[Algorithm], task: Task) -> None:
    """`objective` gives the same value twice, and changes neither state nor random numbers."""
    algorithm = tiny_algorithm(cls, tiny_problem(task))
    batch = tiny_batch(task)
    out = _outputs(algorithm, replace(batch, draws=algorithm.drawn(batch, 3)), 3)
    with _unchanged(algorithm):
        first, second = algorithm.objective(out), algorithm.objective(out)
    assert torch.equal(first, second), f"it gives {first.item()}, then {second.item()}"


def _outputs(algorithm: Algorithm, batch: Batch, step: int) -> Outputs:
    """The outputs that `objective` is given at a step of a batch that has its draws."""
    out = algorithm.outputs(algorithm.prepare(batch), step)
    out.buffers.update(algorithm.next_buffers(out))
    return out


@contextmanager
def _unchanged(algorithm: Algorithm) -> Iterator[None]:
    """Asserts that neither the method's state nor torch's random numbers change meanwhile."""
    state = {name: value.clone() for name, value in algorithm.state_dict().items()}
    rng = torch.get_rng_state()
    yield
    for name, value in algorithm.state_dict().items():
        assert torch.equal(value, state[name]), f"it changes '{name}'"
    assert torch.equal(torch.get_rng_state(), rng), "it draws random numbers"


@_rule
def buffers_are_pure(cls: type[Algorithm], task: Task) -> None:
    """`next_buffers` gives the same values twice, for buffers that there are, and changes nothing."""
    if cls.next_buffers is Algorithm.next_buffers:
        raise DoesNotApply("it remembers nothing from step to step")
    algorithm = tiny_algorithm(cls, tiny_problem(task))
    out = algorithm.outputs(algorithm.prepared(tiny_batch(task), 3), 3)
    with _unchanged(algorithm):
        first, second = algorithm.next_buffers(out), algorithm.next_buffers(out)
    for name, value in first.items():
        buffer = algorithm.get_buffer(name)
        assert value.shape == buffer.shape, f"'{name}' becomes {tuple(value.shape)}"
        assert torch.equal(value, second[name]), f"'{name}' has two values"


@_rule
def batches_come_from_the_generator(cls: type[Algorithm], task: Task) -> None:
    """`draw` draws from the step's generator alone, and `prepare` draws nothing."""
    if cls.draw is Algorithm.draw and cls.prepare is Algorithm.prepare:
        raise DoesNotApply("it trains on the batches as they are")
    algorithm, batch = tiny_algorithm(cls, tiny_problem(task)), tiny_batch(task)
    with _unchanged(algorithm):
        first, second = algorithm.prepared(batch, 3), algorithm.prepared(batch, 3)
    for one, other in ((first.x, second.x), (first.y, second.y)):
        assert torch.equal(one.nan_to_num(), other.nan_to_num()), "the same step has two batches"
    if cls.draw is not Algorithm.draw:
        drawn = [algorithm.drawn(batch, step) for step in range(20)]
        for name, value in drawn[0].items():
            varies = any(not torch.equal(value, d[name]) for d in drawn[1:])
            assert varies, f"'{name}' is the same in twenty steps"


def _shared(cls: type[Algorithm], index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A draw of a method's hyperparameters, and those of ERM with what the two share."""
    values = draw(cls.Hparams, cls.__name__, index)
    common = {f.name for f in fields(Algorithm.Hparams)}
    return values, {name: value for name, value in values.items() if name in common}


@_rule
def every_draw_trains(cls: type[Algorithm], task: Task) -> None:
    """In a run of 300 steps the defaults and random draws move the network, and elsewhere than ERM."""
    if task.kind != "binary" and cls.skip(tiny_problem(TASKS["binary"])) is None:
        return  # one kind of task is enough
    problem = replace(tiny_problem(task), steps=300)
    batches = [_float32(tiny_batch(task, seed)) for seed in range(10)]
    for index in range(4):
        values, common = _shared(cls, index)
        ends = []
        for method, given in ((cls, values), (Algorithm, common)):
            algorithm = tiny_algorithm(method, problem, given, dtype=torch.float32)
            start = parameters_to_vector(algorithm.network.parameters()).detach().clone()
            for step in range(300):
                algorithm.update(batches[step % 10], step)
            ends.append(parameters_to_vector(algorithm.network.parameters()).detach())
            moved = not torch.equal(start, ends[-1])
            assert moved or not cls.trains_network, f"draw {index} leaves the network as it was"
        other = cls.neutral(problem) == {} or not torch.equal(*ends)
        assert other or not cls.trains_network, f"draw {index} ends with ERM's weights"


@_rule
def updates_are_finite(cls: type[Algorithm], task: Task) -> None:
    """Losses, metrics and parameters stay finite, the network moves, and it predicts."""
    algorithm = tiny_algorithm(cls, tiny_problem(task), dtype=torch.float32)
    before = parameters_to_vector(algorithm.network.parameters()).detach().clone()
    for step in (0, 1, 2, LAST):
        _require_finite_update(algorithm, tiny_batch(task, step), step)
    after = parameters_to_vector(algorithm.network.parameters()).detach()
    moved = not torch.equal(before, after)
    assert moved or not cls.trains_network, "four updates leave the network as it was"
    shape = tuple(algorithm.predict(torch.zeros(7, 4)).shape)
    wanted = (7, task.num_outputs)
    assert shape == wanted, f"the logits of 7 examples have the shape {shape}, not {wanted}"


@_rule
def differs_from_erm(cls: type[Algorithm], task: Task) -> None:
    """At its defaults and past annealing, it gives the network another gradient than ERM."""
    problem, batch = tiny_problem(task), tiny_batch(task)
    if cls.neutral(problem) == {}:
        return  # it is ERM at any hyperparameters
    erm = network_step(tiny_algorithm(Algorithm, problem, PLAIN), batch, LAST)
    own = network_step(tiny_algorithm(cls, problem, PLAIN), batch, LAST)
    difference = float((own - erm).abs().max())
    assert difference > 1e-6 * float(erm.abs().max()), "the two gradients are equal"


@_rule
def is_erm_when_neutral(cls: type[Algorithm], task: Task) -> None:
    """At its `neutral` hyperparameters it gives the network ERM's gradient, to round-off."""
    problem, batch = tiny_problem(task), tiny_batch(task)
    neutral = cls.neutral(problem)
    if neutral is None:
        return
    for step in (0, LAST):
        erm = network_step(tiny_algorithm(Algorithm, problem, PLAIN), batch, step)
        own = network_step(tiny_algorithm(cls, problem, {**PLAIN, **neutral}), batch, step)
        _require_close(own, erm, f"the gradient differs from ERM's at step {step}")


@_rule
def ignores_the_order_of_environments(cls: type[Algorithm], task: Task) -> None:
    """Permuting the environments changes the network's gradient by no more than round-off.

    What the method itself owns is permuted with them along every axis that is as long as there
    are environments, such as the output units of a discriminator.
    """
    if cls.draw is not Algorithm.draw:
        raise DoesNotApply("its random numbers belong to the environments' places")
    order = [3, 0, 4, 1, 2]
    batch = tiny_batch(task)
    plain = tiny_algorithm(cls, tiny_problem(task), PLAIN)
    permuted = tiny_algorithm(cls, tiny_problem(task, tuple(ENVIRONMENTS[i] for i in order)), PLAIN)
    state = plain.state_dict()
    for name, value in state.items():
        if not name.startswith("network."):
            for axis, size in enumerate(value.shape):
                if size == len(order):
                    state[name] = state[name].index_select(axis, torch.tensor(order))
    permuted.load_state_dict(state)
    wanted = network_step(plain, batch, LAST)
    found = network_step(permuted, replace(batch, x=batch.x[order], y=batch.y[order]), LAST)
    _require_close(found, wanted, "the gradient depends on the environments' order")


@_rule
def resumes_exactly(cls: type[Algorithm], task: Task) -> None:
    """What is saved is all there is: a resumed run goes on bit for bit like one that never stopped."""
    problem = tiny_problem(task)
    batches = [_float32(tiny_batch(task, seed)) for seed in range(6)]
    whole = tiny_algorithm(cls, problem, dtype=torch.float32)
    for step in range(3):
        whole.update(batches[step], step)
    file = io.BytesIO()
    torch.save((_state(whole), torch.get_rng_state()), file)
    for step in range(3, 6):
        whole.update(batches[step], step)
    resumed = tiny_algorithm(cls, problem, dtype=torch.float32)
    file.seek(0)
    (state, optimizers), rng = torch.load(file, weights_only=True)
    resumed.load_state_dict(state)
    for name, optimizer in resumed.optimizers.items():
        optimizer.load_state_dict(optimizers[name])
    torch.set_rng_state(rng)
    for step in range(3, 6):
        resumed.update(batches[step], step)
    (wanted, wanted_optimizers), (found, found_optimizers) = _state(whole), _state(resumed)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), f"'{name}' differs after resuming"
    same = _tensors(found_optimizers), _tensors(wanted_optimizers)
    assert all(map(torch.equal, *same)), "the optimizers' states differ after resuming"


def _state(algorithm: Algorithm) -> tuple[dict[str, Any], dict[str, Any]]:
    return algorithm.state_dict(), {n: o.state_dict() for n, o in algorithm.optimizers.items()}


def _tensors(tree: object) -> list[Tensor]:
    """The tensors in nested dictionaries, in order."""
    if isinstance(tree, dict):
        return [tensor for value in tree.values() for tensor in _tensors(value)]
    return [tree] if isinstance(tree, Tensor) else []


@_rule
def takes_one_environment_or_says_why_not(cls: type[Algorithm], task: Task) -> None:
    """With a single training environment `skip` gives a reason, or an update works."""
    problem = tiny_problem(task, ENVIRONMENTS[:1])
    reason = cls.skip(problem)
    if reason is None:
        algorithm = tiny_algorithm(cls, problem, dtype=torch.float32)
        _require_finite_update(algorithm, tiny_batch(task, environments=1), LAST)
    else:
        assert isinstance(reason, str) and reason.strip(), "`skip` gives an empty reason"


@_rule
def takes_one_example(cls: type[Algorithm], task: Task) -> None:
    """An update works with a single example of each environment."""
    algorithm = tiny_algorithm(cls, tiny_problem(task), dtype=torch.float32)
    for step in (0, LAST):
        _require_finite_update(algorithm, tiny_batch(task, examples=1), step)


class _Objective(nn.Module):
    """The objective as a function of the parameters and the hyperparameters."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        self.algorithm = algorithm
        self._hparams = algorithm.hparams

    def forward(
        self, values: dict[str, Any], draws: dict[str, Tensor], batch: Batch, step: int
    ) -> Tensor:
        self.algorithm.hparams = replace(self._hparams, **values)
        return self.algorithm.objective(_outputs(self.algorithm, replace(batch, draws=draws), step))

    def drawn(self, values: dict[str, Any], batch: Batch, step: int) -> dict[str, Tensor]:
        """What the method draws at these values, outside of what is vectorized."""
        self.algorithm.hparams = replace(self._hparams, **values)
        return self.algorithm.drawn(batch, step)


def _drawn(cls: type[Algorithm], count: int) -> list[dict[str, Any]]:
    """The numbers among the hyperparameters of the first random draws."""
    drawn = [draw(cls.Hparams, cls.__name__, index) for index in range(1, count + 1)]
    numbers = [
        name
        for name, distribution in distributions(cls.Hparams).items()
        if distribution is not None and all(type(values[name]) in (int, float) for values in drawn)
    ]
    return [{name: values[name] for name in numbers} for values in drawn]


def _stacked(drawn: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {name: torch.tensor([v[name] for v in drawn], dtype=torch.float64) for name in drawn[0]}


@_rule
def trains_many_runs_as_one(cls: type[Algorithm], task: Task) -> None:
    """`objective` and `combine` take a drawn number as a tensor: `vmap` over runs changes nothing.

    Instead of a branch in Python (`if`, `or`, `min`) on it write arithmetic or `torch.where`; instead of
    a function of the module `math` that of torch; what an objective remembers belongs in a buffer.
    """
    module = _Objective(tiny_algorithm(cls, tiny_problem(task)))
    drawn, batch = _drawn(cls, 3), tiny_batch(task)
    torch.manual_seed(2)
    parameters = {
        name: torch.stack([p.detach() + 0.1 * torch.randn_like(p) for _ in drawn])
        for name, p in module.named_parameters()
    }

    for step in (0, 50, LAST):

        def value(p: Any, values: Any, draws: Any, step: int = step) -> Tensor:
            result: Tensor = functional_call(module, p, (values, draws, batch, step))
            return result

        draws = [module.drawn(values, batch, step) for values in drawn]
        every = {name: torch.stack([d[name] for d in draws]) for name in draws[0]}
        gradients, together = vmap(grad_and_value(value))(parameters, _stacked(drawn), every)
        for k, values in enumerate(drawn):
            alone = {name: p[k] for name, p in parameters.items()}
            gradient, wanted = grad_and_value(value)(alone, values, draws[k])
            _require_close(together[k], wanted, f"the objective of run {k} differs at step {step}")
            for name, g in gradient.items():
                _require_close(gradients[name][k], g, f"the gradient of '{name}' differs")

    stacks = torch.randn(len(drawn), len(ENVIRONMENTS), 40, dtype=torch.float64)

    def combined(values: Any, stack: Tensor) -> Tensor:
        module.algorithm.hparams = replace(module._hparams, **values)
        return module.algorithm.combine(stack)

    together = vmap(combined)(_stacked(drawn), stacks)
    for k, values in enumerate(drawn):
        _require_close(together[k], combined(values, stacks[k]), "`combine` differs")


@_rule
def draws_within_limits(cls: type[Algorithm], task: Task) -> None:
    """Every default, and every value that a draw can take, is one that a user may set."""
    families = {family for f in fields(cls.Hparams) for family in f.metadata.get("by_family", {})}
    for family in ("", *sorted(families)):
        values = [(name, value) for name, value in defaults(cls.Hparams, family).items()]
        for name, distribution in distributions(cls.Hparams, family).items():
            if distribution is not None:
                quantiles = [*(i / 100 for i in range(100)), math.nextafter(1, 0)]
                values += [(name, distribution.at(u)) for u in quantiles]
        for name, value in values:
            place = f"the hyperparameters of {cls.__name__}"
            taken = getattr(checked(cls.Hparams, {name: value}, place), name)
            assert type(taken) is type(value) and taken == value, f"'{name}' would become {taken}"


@_rule
def combines_signs_as_gradients(cls: type[Algorithm], task: Task) -> None:
    """Where the reduction has `combine_signs`, it gives what `combine` gives."""
    reduction = tiny_algorithm(cls, tiny_problem(task)).reduction
    if reduction is not None and reduction.combine_signs is not None:
        stack = torch.randn(7, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        found = reduction.combine_signs(stack.sign().sum(0), stack.mean(0), 7)
        _require_close(found, reduction.combine(stack), "`combine_signs` differs")
