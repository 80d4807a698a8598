"""The gradients of every unit's risk, from one forward and about one backward pass.

A unit is an environment, with the mean loss of its examples, or a single example. In one backward
pass over the sum of the risks each layer's cotangents belong to single examples, since examples do
not interact: `oodbench.gradients.layers` turns them into the gradients of that layer's parameters
for every unit. A layer's gradients are combined as soon as they are complete and then freed, so that
no more than the largest layer's are ever stacked.

In batch normalisation in training mode examples do interact, and "the gradient of unit u" has four
meanings:

- `environment`: each unit's rows by their own statistics, as separate forward passes would have it
  (arXiv:2007.01434's code). The default for environments.
- `rows`: all rows by the statistics of the whole batch, through which the gradient flows; unit u's
  is what reaches the parameters by its own rows. The mean is the batch's gradient, as with
  `coupled`, at the price of one backward pass. The default for examples.
- `pooled`: all rows by the statistics of the whole batch, which count as constants in the backward
  pass. The mean is not the batch's gradient: nothing keeps weights that the normalisation makes
  irrelevant from growing, and training lags (docs/findings/label_noise.md).
- `coupled`: all rows by the statistics of the whole batch, through which unit u's risk depends on
  every row (arXiv:2009.00329's code for CIFAR-10). It costs as many backward passes as there are
  units, and the whole model's gradients for each; here they run as one batched pass.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from oodbench.gradients.factored import Dense, Gradients, add
from oodbench.gradients.layers import RunLayer, any_layer, layers

Visit = Callable[[Tensor, Gradients], None]

BATCH_NORM = {"environment": "environment", "example": "rows"}
"""The meaning of batch normalisation by default, for each kind of unit."""


@dataclass(frozen=True, kw_only=True)
class Units:
    """A batch of U units, whose gradients are wanted, with n examples each."""

    count: int
    """U."""
    forward: Callable[[], tuple[Tensor, Any]]
    """Does one forward pass over the batch; returns the units' risks, (U,), and its other outputs."""
    x: Tensor
    """Inputs, (U, n, *input_shape)."""
    y: Tensor
    """Targets, (U, n, ...)."""
    losses: Callable[[Tensor, Tensor], Tensor]
    """Maps a unit's logits (n, C) and targets to the losses of its examples, (n,)."""
    batch_norm: str
    """The meaning of batch normalisation, one of the names above."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How the units' gradients of a parameter become one."""

    combine: Callable[[Tensor], Tensor]
    """Maps the units' gradients, (U, *shape), to one gradient, (*shape)."""
    combine_signs: Callable[[Tensor, Tensor, int], Tensor] | None = None
    """Computes the result of `combine` faster, from the sum of the units' signs, their mean gradient,
    (*shape) each, which it may overwrite, and U."""
    unit: str = "environment"
    """Whose gradients are combined: those of every `environment` or of every `example`."""
    batch_norm: str | None = None
    """The meaning of batch normalisation, one of the names above; None: the unit's default."""
    observe: Callable[[Tensor, Tensor], dict[str, Tensor]] | None = None
    """Further scalars for the records, a pure function of two tensors of length P, the number of
    the network's trained parameters: the squared norm of each before an update, and in how many of
    its components the combined gradient is not zero."""


@torch.no_grad()
def observed(network: nn.Module, reduction: Reduction) -> dict[str, Tensor]:
    """What a reduction `observe`s of the network's weights and gradients before an update."""
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
    """Set each parameter's `.grad` to the units' gradients, combined by `reduction`.

    A parameter that no risk depends on gets None. Several micro-batches are run one after the other:
    units that are environments then have examples in each, and all units' gradients of the whole model
    are in memory. Returns the mean risk, detached, and the other outputs of each forward pass.
    """
    if len(micro_batches) > 1:
        return _accumulated(network, micro_batches, reduction)
    (units,) = micro_batches
    combined: dict[Tensor, Tensor] = {}

    def visit(parameter: Tensor, gradients: Gradients) -> None:
        if reduction.combine_signs is not None:
            combined[parameter] = reduction.combine_signs(*gradients.signs(), units.count)
        else:
            combined[parameter] = reduction.combine(gradients.stacked())

    loss, outputs = visit_gradients(network, units, visit)
    for parameter, gradient in combined.items():
        parameter.grad = gradient
    return loss, [outputs]


def _accumulated(
    network: nn.Module, micro_batches: Sequence[Units], reduction: Reduction
) -> tuple[Tensor, list[Any]]:
    size = sum(units.x.shape[:2].numel() for units in micro_batches)
    stacks: dict[Tensor, list[Tensor]] = {}
    loss, outputs = torch.zeros((), device=micro_batches[0].x.device), []
    for units in micro_batches:
        stacked: dict[Tensor, Tensor] = {}
        mean_risk, output = visit_gradients(network, units, _keep_in(stacked))
        share = units.x.shape[:2].numel() / size
        by_environment = reduction.unit == "environment"
        for parameter, stack in stacked.items():
            stacks.setdefault(parameter, []).append(stack * share if by_environment else stack)
        loss = loss + share * mean_risk
        outputs.append(output)
    for parameter, pieces in stacks.items():
        by_unit = torch.stack(pieces).sum(0) if by_environment else torch.cat(pieces)
        parameter.grad = reduction.combine(by_unit)
    return loss, outputs


def _keep_in(stacked: dict[Tensor, Tensor]) -> Visit:
    def visit(parameter: Tensor, gradients: Gradients) -> None:
        stacked[parameter] = gradients.stacked()

    return visit


def stacked_gradients(network: nn.Module, units: Units) -> dict[str, Tensor]:
    """The gradients of the units' risks by parameter, (U, *shape) each.

    They take U times the memory of the model.
    """
    stacked: dict[Tensor, Tensor] = {}
    visit_gradients(network, units, _keep_in(stacked))
    names: dict[Tensor, str] = {p: name for name, p in network.named_parameters()}
    return {names[parameter]: gradients for parameter, gradients in stacked.items()}


def visit_gradients(network: nn.Module, units: Units, visit: Visit) -> tuple[Tensor, Any]:
    """Call `visit` with the units' gradients of each trained parameter, one after the other.

    The order is that of the backward pass; afterwards the parameters' own `.grad` are None. If a
    parameter is used outside its layer, or in a layer that does not map one tensor to another, every
    parameter is visited again with gradients by `torch.func`, which replace the first ones. Returns the
    mean risk, detached, and the other outputs of the forward pass.
    """
    parameters = list(network.parameters())
    for parameter in parameters:
        parameter.grad = None
    if units.batch_norm == "coupled":
        risks, outputs = units.forward()
        _coupled(network, risks, visit)
    else:
        with taps(network, units.count, units.batch_norm, visit) as complete:
            risks, outputs = units.forward()
            risks.sum().backward()  # type: ignore[no-untyped-call]
            complete()
        if any(p.grad is not None for p in parameters):
            network.zero_grad()
            _say_fallback(f"the network {type(network).__name__}")
            _by_torch_func(network, units, visit)
    return risks.detach().mean(), outputs


@contextmanager
def taps(
    network: nn.Module, units: int, batch_norm: str, visit: Visit
) -> Iterator[Callable[[], None]]:
    """A context in which backward passes of `network` call `visit` with the units' gradients.

    The backward pass of the sum of the risks calls `visit` once for each parameter, as soon as the
    last layer that uses it was passed; the parameters' own `.grad` stay None, except where a
    parameter is used outside its layer. The yielded function visits the parameters that still wait
    for a layer on which the risks do not depend.
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

    tapped = []
    for module, run in layers(network):
        if run is any_layer:
            _say_fallback(f"the layer {type(module).__name__}")
        module.__dict__["forward"] = _tapped(module, run, units, batch_norm, pending, collect)
        tapped.append(module)
    try:
        yield complete
    finally:
        for module in tapped:
            del module.__dict__["forward"]


def _tapped(
    module: nn.Module,
    run: RunLayer,
    units: int,
    batch_norm: str,
    pending: Counter[Tensor],
    collect: Callable[[Any], None],
) -> Callable[..., Any]:
    """The forward pass of a layer by `run`, with a hook on the output's cotangent.

    A layer whose input or output is not a single tensor runs unchanged; its parameters then get a
    `.grad`, by which `visit_gradients` knows that the whole network has to fall back.
    """
    trained = [p for p in module.parameters() if p.requires_grad]

    def forward(*inputs: Any, **named: Any) -> Any:
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
            precision = trained[0].dtype  # of the gradients, whatever autocast runs the layer in
            hooked.register_hook(lambda cotangent: collect(pullback(cotangent.to(precision))))
        return output

    return forward


class Root(torch.autograd.Function):
    """The identity, in place: the root of a graph below which no layer has parameters."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        """`output` itself, which now has cotangents; `anchor` is any trained parameter."""
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[None, None]:
        """Stop the backward pass here: nothing below holds parameters."""
        return None, None


def _coupled(network: nn.Module, risks: Tensor, visit: Visit) -> None:
    """Also the gradients through batch statistics: U backward passes as one."""
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
        f"the gradients of {what} are computed by torch.func: they are exact, but slower than for the "
        "layers in oodbench.gradients.layers",
        stacklevel=3,
    )
