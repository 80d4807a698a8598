"""The gradients of every unit's risk, from one forward and about one backward pass.

A unit is an environment, with the mean loss of its examples, or a single example. In one backward
pass over the sum of the risks each layer's cotangents still are those of single examples, since
the examples do not see each other: `oodbench.layers` turns them into the gradients of that layer's
parameters for every unit. A layer's gradients are combined as soon as they are complete and then
freed, so that no more than the largest layer's are ever stacked.

Batch normalisation in training mode is where examples do see each other, and "the gradient of unit
u" then has four meanings:

- `environment`: each unit's rows by their own statistics, as separate forward passes would have it
  (arXiv:2007.01434's code). The default for environments.
- `rows`: all rows by the statistics of the whole batch, through which the gradient flows; unit u's
  is what reaches the parameters by its own rows. The mean is the batch's gradient, as with
  `coupled`, at the price of one backward pass. The default for examples.
- `pooled`: all rows by the statistics of the whole batch, which count as constants in the backward
  pass. The mean is not the batch's gradient: nothing keeps weights that the normalisation makes
  irrelevant from growing, and training lags (docs/label_noise.md).
- `coupled`: all rows by the statistics of the whole batch, through which unit u's risk depends on
  every row (arXiv:2009.00329's code for CIFAR-10). It costs as many backward passes as there are
  units, and the whole model's gradients for each; here they run as one batched pass.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from oodbench.layers import Rule, any_layer, parts
from oodbench.stacks import Gradients, Stack, add

if TYPE_CHECKING:
    from oodbench.algorithms import Algorithm, Batch

Visit = Callable[[Tensor, Gradients], None]

BATCH_NORM = {"environment": "environment", "example": "rows"}
"""The meaning of batch normalisation by default, for each kind of unit."""


@dataclass(frozen=True)
class Backward:
    """What a backward pass returns beside the gradients."""

    loss: Tensor
    """The mean risk, detached."""
    metrics: dict[str, Tensor]
    batch_norm: str
    """Which meaning of batch normalisation was used, by the names above."""


def combined_backward(algorithm: "Algorithm", batch: "Batch", step: int) -> Backward:
    """Set each parameter's `.grad` to what `algorithm` makes of its units' gradients.

    That is `algorithm.combine(stack)`, or `algorithm.combine_signs(net, mean, U)` if it says that
    `signs_suffice`. A parameter that no risk depends on gets None.
    """
    units = count_units(algorithm, batch)
    found: dict[Tensor, Tensor] = {}

    def visit(parameter: Tensor, gradients: Gradients) -> None:
        if algorithm.signs_suffice:
            found[parameter] = algorithm.combine_signs(*gradients.signs(), units)
        else:
            found[parameter] = algorithm.combine(gradients.stacked())

    result = visit_gradients(algorithm, batch, step, visit)
    for parameter, gradient in found.items():
        parameter.grad = gradient
    return result


def stacked_gradients(
    algorithm: "Algorithm", batch: "Batch", step: int = 0
) -> tuple[dict[str, Tensor], Backward]:
    """The gradients of the units' risks by parameter, (U, *shape) each: U times the model."""
    names: dict[Tensor, str] = {p: name for name, p in algorithm.network.named_parameters()}
    found: dict[str, Tensor] = {}

    def visit(parameter: Tensor, gradients: Gradients) -> None:
        found[names[parameter]] = gradients.stacked()

    result = visit_gradients(algorithm, batch, step, visit)
    return found, result


def count_units(algorithm: "Algorithm", batch: "Batch") -> int:
    """How many units a batch has: its environments or its examples."""
    environments, examples = batch.x.shape[:2]
    return environments if algorithm.unit == "environment" else environments * examples


def visit_gradients(algorithm: "Algorithm", batch: "Batch", step: int, visit: Visit) -> Backward:
    """Show the units' gradients of each trained parameter to `visit`, one after the other.

    The order is that of the backward pass; the parameters' own `.grad` are None from here on. If a
    parameter is used outside its layer, or in a layer that is no map from one tensor to another,
    all are shown again, as `torch.func` makes them; then the second time counts.
    """
    meaning = algorithm.batch_norm
    parameters = list(algorithm.network.parameters())
    for parameter in parameters:
        parameter.grad = None
    if meaning == "coupled":
        risks, metrics = _risks(algorithm, batch, step)
        _coupled(algorithm.network, risks, visit)
    else:
        with taps(algorithm.network, count_units(algorithm, batch), meaning, visit) as complete:
            risks, metrics = _risks(algorithm, batch, step)
            risks.sum().backward()  # type: ignore[no-untyped-call]
            complete()
        if any(p.grad is not None for p in parameters):
            algorithm.network.zero_grad()
            _say_fallback(f"the network {type(algorithm.network).__name__}")
            _by_torch_func(algorithm, batch, visit)
    return Backward(risks.detach().mean(), metrics, meaning)


def _risks(algorithm: "Algorithm", batch: "Batch", step: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The risk of each unit, (U,), and the metrics."""
    out = algorithm.outputs(batch, step)
    return (out.risks if algorithm.unit == "environment" else out.losses.flatten()), out.metrics


@contextmanager
def taps(
    network: nn.Module, units: int, batch_norm: str, visit: Visit
) -> Iterator[Callable[[], None]]:
    """Within it, forward and backward passes of `network` show the units' gradients to `visit`.

    The backward pass of the sum of the risks calls `visit` once for each parameter, as soon as the
    last layer that uses it was passed; the parameters' own `.grad` stay None, except where a
    parameter is used outside its layer. The yielded function visits the parameters that wait for
    a layer which the risks turned out not to depend on.
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
    for module, rule in parts(network):
        if rule is any_layer:
            _say_fallback(f"the layer {type(module).__name__}")
        module.__dict__["forward"] = _tapped(module, rule, units, batch_norm, pending, collect)
        tapped.append(module)
    try:
        yield complete
    finally:
        for module in tapped:
            del module.__dict__["forward"]


def _tapped(
    module: nn.Module,
    rule: Rule,
    units: int,
    batch_norm: str,
    pending: Counter[Tensor],
    collect: Callable[[Any], None],
) -> Callable[..., Any]:
    """The forward pass of a layer by its rule, with a hook on the output's cotangent.

    A layer with other inputs than one tensor, or other outputs, runs as ever; what it then gives
    its parameters' `.grad` tells that the whole network has to fall back.
    """
    trained = [p for p in module.parameters() if p.requires_grad]

    def forward(*inputs: Any, **named: Any) -> Any:
        if named or [*map(type, inputs)] != [Tensor] or len(inputs[0]) % units:
            return type(module).forward(module, *inputs, **named)
        output, pullback = rule(module, inputs[0], units, batch_norm)
        if not isinstance(output, Tensor):
            return type(module).forward(module, *inputs)
        if trained:
            if not output.requires_grad:
                output = Root.apply(output, trained[0])
            pending.update(trained)
            hooked: Any = output
            hooked.register_hook(lambda cotangent: collect(pullback(cotangent)))
        return output

    return forward


class Root(torch.autograd.Function):
    """Where a graph begins that holds no parameters: the identity, in place."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor) -> Tensor:
        """`output` itself, which from here on has cotangents; `anchor` is anything trained."""
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[None, None]:
        """Nothing goes further down."""
        return None, None


def _coupled(network: nn.Module, risks: Tensor, visit: Visit) -> None:
    """Each risk's gradient through everything, batch statistics too: U backward passes as one."""
    trained = [p for p in network.parameters() if p.requires_grad]
    one_each = torch.eye(len(risks), dtype=risks.dtype, device=risks.device)
    stacks = torch.autograd.grad(risks, trained, one_each, is_grads_batched=True, allow_unused=True)
    for parameter, stack in zip(trained, stacks, strict=True):
        if stack is not None:
            visit(parameter, Stack(stack))


def _by_torch_func(algorithm: "Algorithm", batch: "Batch", visit: Visit) -> None:
    """The whole network's gradients for each unit, by `vmap` of `grad`."""
    network, task = algorithm.network, algorithm.problem.task
    fixed = dict(network.named_parameters())
    trained: dict[str, Tensor] = {n: p for n, p in fixed.items() if p.requires_grad}

    def risk(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return task.losses(functional_call(network, {**fixed, **parameters}, (x,)), y).mean()

    x, y = batch.x, batch.y
    if algorithm.unit == "example":
        x, y = x.flatten(0, 1).unsqueeze(1), y.flatten(0, 1).unsqueeze(1)
    stacks = vmap(grad(risk), in_dims=(None, 0, 0), randomness="different")(trained, x, y)
    for name, stack in stacks.items():
        visit(fixed[name], Stack(stack))


def _say_fallback(what: str) -> None:
    warnings.warn(
        f"the gradients of {what} are made by torch.func: exact, and slower than those of a layer "
        "that oodbench.layers knows",
        stacklevel=3,
    )
