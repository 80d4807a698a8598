"""The gradients of every unit's risk, from one forward and about one backward pass.

A unit is an environment, whose risk is the mean loss of its examples, or a single example. Examples do not
interact, so one backward pass over the sum of the risks gives each layer a cotangent for every example;
`oodbench.gradients.layers` turns these into each unit's gradients of the layer's parameters. A layer's
gradients are combined as soon as they are complete and then freed: only one layer's are stacked at a time.

Batch normalisation in training mode does make examples interact, and "the gradient of unit u" then has four
meanings:

- `environment`: each unit is normalised by its own statistics, as in separate forward passes
  (arXiv:2007.01434's code). The default for environments.
- `rows`: the whole batch is normalised by its statistics, and the gradient flows through them. Unit u's
  gradient is the part that reaches the parameters through u's rows. The mean over units is the batch's
  gradient, as with `coupled`, for one backward pass. The default for examples.
- `pooled`: the whole batch is normalised by its statistics, which are constants in the backward pass. The
  mean over units is not the batch's gradient: weights whose scale the normalisation cancels may grow
  without limit, and training lags (docs/findings/label_noise.md).
- `coupled`: the whole batch is normalised by its statistics, so that unit u's risk depends on every row
  (arXiv:2009.00329's code for CIFAR-10). This costs U backward passes, run as one batched pass, and U
  gradients of the whole model in memory.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from oodbench.gradients.layers import Dense, Gradients, RunLayer, add, any_layer, layers

Visit = Callable[[Tensor, Gradients], None]

BATCH_NORM = {"environment": "environment", "example": "rows"}
"""The meaning of batch normalisation by default, for each kind of unit."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """A batch of U units with n examples each."""

    forward: Callable[[], tuple[Tensor, Any]]
    """Runs one forward pass over the batch; returns the units' risks, (U,), and any other outputs."""
    x: Tensor
    """Inputs, (U, n, *input_shape)."""
    y: Tensor
    """Targets, (U, n, ...)."""
    losses: Callable[[Tensor, Tensor], Tensor]
    """Maps a unit's logits (n, C) and targets to its examples' losses (n,)."""
    batch_norm: str
    """The meaning of a unit's gradient under batch normalisation, one of the module's four."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How the units' gradients of a parameter are combined into one."""

    combine: Callable[[Tensor], Tensor]
    """Maps gradients (U, *shape) to one gradient (*shape)."""
    combine_signs: Callable[[Tensor, Tensor, int], Tensor] | None = None
    """A faster `combine` for reductions that need only the sum of the units' signs and their mean gradient,
    (*shape) each, and U. It may overwrite the first two."""
    unit: str = "environment"
    """The unit whose gradients are combined: `environment` or `example`."""
    batch_norm: str | None = None
    """One of the module's four meanings; None for the unit's default."""
    observe: Callable[[Tensor, Tensor], dict[str, Tensor]] | None = None
    """Scalars to record, from two tensors (P,) over the network's P trained parameters: the squared norm of
    each before an update, and the number of nonzero components in its combined gradient."""

    @property
    def meaning(self) -> str:
        """The meaning of batch normalisation: `batch_norm`, or the unit's default."""
        return self.batch_norm or BATCH_NORM[self.unit]


@torch.no_grad()
def observed(network: nn.Module, reduction: Reduction) -> dict[str, Tensor]:
    """The scalars that a reduction observes of weights and gradients before an update."""
    if reduction.observe is None:
        return {}
    trained: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    counts = torch._foreach_norm(torch._foreach_sign(gradients))
    norms = torch._foreach_norm(trained)
    return reduction.observe(*(torch.stack(n).square_() for n in (norms, counts)))


def combined_backward(
    network: nn.Module, micro_batches: Sequence[Units], reduction: Reduction
) -> tuple[Tensor, list[Any]]:
    """Set each parameter's `.grad` to the units' gradients combined by `reduction`.

    The gradient is None for a parameter that no risk depends on. With several micro-batches every
    environment has examples in each of them, and all units' gradients of the whole model are kept in
    memory. Returns the mean risk, detached, and the other outputs of each forward pass.
    """
    if len(micro_batches) > 1:
        return _accumulated(network, micro_batches, reduction)
    (units,) = micro_batches

    def reduce(gradients: Gradients) -> Tensor:
        if reduction.combine_signs is not None:
            return reduction.combine_signs(*gradients.signs(), len(units.x))
        return reduction.combine(gradients.stacked())

    combined, loss, outputs = reduced_gradients(network, units, reduce)
    for parameter, gradient in combined.items():
        parameter.grad = gradient
    return loss, [outputs]


def _accumulated(
    network: nn.Module, micro_batches: Sequence[Units], reduction: Reduction
) -> tuple[Tensor, list[Any]]:
    # an environment's gradient is a weighted mean over micro-batches; an example is in one micro-batch only
    by_environment = reduction.unit == "environment"
    size = sum(units.x.shape[:2].numel() for units in micro_batches)
    stacks: dict[Tensor, list[Tensor]] = {}
    loss, outputs = torch.zeros((), device=micro_batches[0].x.device), []
    for units in micro_batches:
        stacked, mean_risk, output = reduced_gradients(network, units, lambda g: g.stacked())
        share = units.x.shape[:2].numel() / size
        for parameter, stack in stacked.items():
            stacks.setdefault(parameter, []).append(stack * share if by_environment else stack)
        loss = loss + share * mean_risk
        outputs.append(output)
    for parameter, pieces in stacks.items():
        by_unit = torch.stack(pieces).sum(0) if by_environment else torch.cat(pieces)
        parameter.grad = reduction.combine(by_unit)
    return loss, outputs


def stacked_gradients(network: nn.Module, units: Units) -> dict[str, Tensor]:
    """The gradients of the units' risks by parameter name, (U, *shape) each: U times the model's size."""
    stacked, *_ = reduced_gradients(network, units, lambda g: g.stacked())
    names: dict[Tensor, str] = {p: name for name, p in network.named_parameters()}
    return {names[parameter]: gradients for parameter, gradients in stacked.items()}


def reduced_gradients(
    network: nn.Module, units: Units, reduce: Callable[[Gradients], Tensor]
) -> tuple[dict[Tensor, Tensor], Tensor, Any]:
    """Reduce the units' gradients of each trained parameter, in the order of the backward pass.

    Afterwards every `.grad` is None. If a parameter is used outside its layer, or in a layer that does not
    map one tensor to another, `torch.func` computes the gradients of all parameters again. Returns the
    result of `reduce` for each parameter, the mean risk, detached, and the other outputs of the forward
    pass.
    """
    reduced: dict[Tensor, Tensor] = {}

    def visit(parameter: Tensor, gradients: Gradients) -> None:
        reduced[parameter] = reduce(gradients)

    parameters = list(network.parameters())
    for parameter in parameters:
        parameter.grad = None
    if units.batch_norm == "coupled":
        risks, outputs = units.forward()
        _coupled(network, risks, visit)
    else:
        with taps(network, len(units.x), units.batch_norm, visit) as complete:
            risks, outputs = units.forward()
            risks.sum().backward()  # type: ignore[no-untyped-call]
            complete()
        # autograd reached a parameter without a tap: its gradient is summed over units
        if any(p.grad is not None for p in parameters):
            network.zero_grad()
            _say_fallback(f"the network {type(network).__name__}")
            _by_torch_func(network, units, visit)
    return reduced, risks.detach().mean(), outputs


@contextmanager
def taps(
    network: nn.Module, units: int, batch_norm: str, visit: Visit
) -> Iterator[Callable[[], None]]:
    """A context in which backward passes of `network` call `visit` with the units' gradients.

    The backward pass of the summed risks calls `visit` once for each parameter, as soon as its last layer
    is done. `.grad` stays None except for parameters that are used outside their layer. Call the yielded
    function after the backward pass: it visits parameters that some layer uses without effect on the risks.
    """
    pending: Counter[Tensor] = Counter()
    collected: dict[Tensor, Gradients] = {}

    def collect(gradients: Any) -> None:
        for parameter, more in gradients.items():
            if parameter in collected:
                more = add(collected.pop(parameter), more)
            collected[parameter] = more
            pending[parameter] -= 1
            if not pending[parameter]:
                visit(parameter, collected.pop(parameter))

    def complete() -> None:
        while collected:
            visit(*collected.popitem())

    forwards = {}
    for module, run in layers(network):
        if run is any_layer:
            _say_fallback(f"the layer {type(module).__name__}")
        forwards[module] = _tapped(module, run, units, batch_norm, pending, collect)
    with replaced_forwards(forwards):
        yield complete


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """A context in which modules have another `forward`."""
    for module, forward in forwards.items():
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.__dict__["forward"]


def _tapped(
    module: nn.Module,
    run: RunLayer,
    units: int,
    batch_norm: str,
    pending: Counter[Tensor],
    collect: Callable[[Any], None],
) -> Callable[..., Any]:
    trained = [p for p in module.parameters() if p.requires_grad]

    def forward(*inputs: Any, **named: Any) -> Any:
        # unless it maps one tensor to another, the layer runs unchanged: `.grad` of its parameters shows
        # `reduced_gradients` that the whole network must fall back
        if named or [*map(type, inputs)] != [Tensor] or len(inputs[0]) % units:
            return type(module).forward(module, *inputs, **named)
        output, pullback = run(module, inputs[0], units, batch_norm)
        if not isinstance(output, Tensor):
            return type(module).forward(module, *inputs)
        if trained:
            if not output.requires_grad:
                output = Root.apply(output, trained[0])
            pending.update(trained)
            hooked: Any = output
            precision = trained[0].dtype  # of the gradients, also under autocast
            hooked.register_hook(lambda cotangent: collect(pullback(cotangent.to(precision))))
        return output

    return forward


class Root(torch.autograd.Function):
    """An in-place identity that starts the graph at the first layer with parameters.

    `requires_grad_` would make the output a leaf, which later in-place layers may not change.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        """Pass `output` through; `anchor`, any trained parameter, makes it require a gradient."""
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[None, None]:
        """Stop: no layer below has parameters."""
        return None, None


def _coupled(network: nn.Module, risks: Tensor, visit: Visit) -> None:
    trained = [p for p in network.parameters() if p.requires_grad]
    one_each = torch.eye(len(risks), dtype=risks.dtype, device=risks.device)
    stacks = torch.autograd.grad(risks, trained, one_each, is_grads_batched=True, allow_unused=True)
    for parameter, stack in zip(trained, stacks, strict=True):
        if stack is not None:
            visit(parameter, Dense(stack))


def _by_torch_func(network: nn.Module, units: Units, visit: Visit) -> None:
    fixed = dict(network.named_parameters())
    trained: dict[str, Tensor] = {n: p for n, p in fixed.items() if p.requires_grad}

    def risk(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return units.losses(functional_call(network, {**fixed, **parameters}, (x,)), y).mean()

    per_unit = vmap(grad(risk), in_dims=(None, 0, 0), randomness="different")
    for name, stack in per_unit(trained, units.x, units.y).items():
        visit(fixed[name], Dense(stack))


def _say_fallback(what: str) -> None:
    warnings.warn(
        f"the gradients of {what} are computed by torch.func: exact, but slower than for the layers in "
        "oodbench.gradients.layers",
        stacklevel=3,
    )


def micro_batched(
    network: nn.Module, function: Callable[..., Tensor], count: int, *inputs: Tensor
) -> Tensor:
    """Outputs (N, ...) of `function`, which runs the network on inputs (N, ...), in `count` micro-batches.

    Gradients are those of the whole batch (arXiv:2101.06983). Only one micro-batch's activations are in
    memory: the backward pass recomputes them, which is exact but costs a second forward pass. Batch
    normalisation takes the statistics of each micro-batch, and counts each once.
    """
    if count == 1:
        return function(*inputs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(network)

    outputs = [
        checkpoint(function, *each, use_reentrant=False, context_fn=contexts)
        for each in zip(*(x.chunk(count) for x in inputs), strict=True)
    ]
    return torch.cat(outputs)


@contextmanager
def _statistics_kept(network: nn.Module) -> Iterator[None]:
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    before = [(m, m.momentum, m.num_batches_tracked) for m in layers]
    try:
        for m in layers:
            m.momentum, m.num_batches_tracked = 0.0, None
        yield
    finally:
        for m, momentum, tracked in before:
            m.momentum, m.num_batches_tracked = momentum, tracked
